#include "cleave/data/mix.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

#include "cleave/base/error.h"
#include "cleave/base/hash.h"

namespace cleave::inline data {
namespace {

constexpr int64_t kRepetition = 65536;

/// Draws of each source per repetition: the shares rounded by largest remainder.
std::vector<int64_t> counts_of(const std::vector<WeightedData>& sources) {
  double sum = 0;
  for (const WeightedData& source : sources) sum += source.weight;
  std::vector<int64_t> counts;
  std::vector<double> remainders;
  for (const WeightedData& source : sources) {
    const double exact = source.weight / sum * static_cast<double>(kRepetition);
    CLEAVE_CHECK(exact >= 1, Code::kUsage, source.name, ": the weight is ", source.weight,
                 " of a sum of ", sum, "; expected at least 1/", kRepetition, " of the sum");
    counts.push_back(static_cast<int64_t>(exact));
    remainders.push_back(exact - std::floor(exact));
  }
  std::vector<size_t> order(sources.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return remainders[a] > remainders[b]; });
  int64_t left = kRepetition - std::accumulate(counts.begin(), counts.end(), int64_t{0});
  for (size_t i = 0; left > 0; i = (i + 1) % order.size(), --left) ++counts[order[i]];
  return counts;
}

class JoinedDataset final : public Dataset {
 public:
  explicit JoinedDataset(const std::vector<WeightedData>& sources) : sources_(sources) {
    Hasher hasher;
    for (const WeightedData& source : sources_) {
      const uint64_t identity = source.data->fingerprint();
      hasher.update(std::as_bytes(std::span(&identity, 1)));
      hasher.update(std::as_bytes(std::span(&source.weight, 1)));
      ends_.push_back(size() + source.data->size());
      CLEAVE_CHECK(source.data->is_text() == is_text(), Code::kUsage, source.name, " holds ",
                   is_text() ? "ids, " : "text, ", sources_.front().name,
                   is_text() ? " text" : " ids", "; all data files must be of one kind");
    }
    fingerprint_ = hasher.digest();
  }

  [[nodiscard]] int64_t size() const override { return ends_.empty() ? 0 : ends_.back(); }
  [[nodiscard]] bool is_text() const override { return sources_.front().data->is_text(); }
  [[nodiscard]] uint64_t fingerprint() const override { return fingerprint_; }

  [[nodiscard]] Sample sample(int64_t index) const override {
    CLEAVE_CHECK(index >= 0 && index < size(), Code::kUsage, "sample ", index,
                 " does not exist; there are ", size());
    const auto end = std::upper_bound(ends_.begin(), ends_.end(), index);
    const Dataset& data = *sources_[static_cast<size_t>(end - ends_.begin())].data;
    return data.sample(index - (*end - data.size()));
  }

 private:
  std::vector<WeightedData> sources_;
  std::vector<int64_t> ends_;
  uint64_t fingerprint_ = 0;
};

}  // namespace

DataMix::DataMix(const std::vector<WeightedData>& sources) : counts_(counts_of(sources)) {
  int64_t first = 0;
  for (const WeightedData& source : sources) {
    firsts_.push_back(first);
    sizes_.push_back(source.data->size());
    first += sizes_.back();
  }
  std::vector<int64_t> drawn(sources.size(), 0);
  pattern_.reserve(static_cast<size_t>(kRepetition));
  for (int64_t n = 1; n <= kRepetition; ++n) {
    // In units of 1 / kRepetition sequences, so that it is exact.
    const auto behind = [&](size_t s) { return counts_[s] * n - drawn[s] * kRepetition; };
    size_t most = 0;
    for (size_t s = 1; s < drawn.size(); ++s) {
      if (behind(s) > behind(most)) most = s;
    }
    pattern_.push_back({.source = static_cast<int64_t>(most), .number = drawn[most]++});
  }
}

DataMix::Draw DataMix::draw(int64_t n) const {
  Draw draw = pattern_[static_cast<size_t>(n % kRepetition)];
  draw.number += n / kRepetition * counts_[static_cast<size_t>(draw.source)];
  return draw;
}

std::shared_ptr<const Dataset> joined_dataset(const std::vector<WeightedData>& sources) {
  CLEAVE_CHECK(!sources.empty(), Code::kUsage, "0 data sources; expected at least one");
  return std::make_shared<JoinedDataset>(sources);
}

}  // namespace cleave::inline data
