#include "cleave/data/packing.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <span>
#include <utility>

#include "cleave/base/error.h"
#include "cleave/base/hash.h"
#include "cleave/data/order.h"

namespace cleave::inline data {
namespace {

/// The samples of a sequence.
struct PackedTexts {
  std::vector<int64_t> members;  ///< in its order
  int64_t tokens = 0;
};

/// Tokens of each sample. Read in the order of the data, since a disk reads it many times faster
/// than at random.
std::vector<int64_t> lengths_of(const Dataset& samples) {
  std::vector<int64_t> out(static_cast<size_t>(samples.size()));
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = std::ssize(samples.sample(static_cast<int64_t>(i)).ids);
  }
  return out;
}

/// Best fit. The free tokens of sequences are kept in order, so that a sample costs O(log n).
std::vector<PackedTexts> best_fit(const Dataset& samples, const PackingOptions& options) {
  const int64_t count = samples.size();
  const std::vector<int64_t> lengths = lengths_of(samples);
  const SampleOrder order{
      .num_samples = count, .batch_size = count, .shuffle = options.shuffle, .seed = options.seed};
  std::vector<PackedTexts> sequences;
  std::set<std::pair<int64_t, size_t>> open;  // free tokens and index of sequences with room
  for (int64_t place = 0; place < count; ++place) {
    const int64_t sample = order.at(0, place);
    const int64_t length = lengths[static_cast<size_t>(sample)];
    std::pair<int64_t, size_t> target{options.seq_len, sequences.size()};
    const auto fullest = open.lower_bound({length, 0});
    if (fullest != open.end()) {
      target = *fullest;
      open.erase(fullest);
    } else {
      sequences.emplace_back();
    }
    sequences[target.second].members.push_back(sample);
    sequences[target.second].tokens += length;
    if (target.first > length) open.emplace(target.first - length, target.second);
  }
  return sequences;
}

/// Appends `values`, or `count` times `otherwise` if there are none.
void append(std::vector<int64_t>& to, const std::vector<int64_t>& values, size_t count,
            int64_t otherwise) {
  values.empty() ? to.insert(to.end(), count, otherwise)
                 : to.insert(to.end(), values.begin(), values.end());
}

class PackedSamples final : public Dataset {
 public:
  PackedSamples(std::shared_ptr<const Dataset> samples, const PackingOptions& options)
      : samples_(std::move(samples)), sequences_(best_fit(*samples_, options)) {
    Hasher hasher;
    const uint64_t of_samples = samples_->fingerprint();
    hasher.update(std::as_bytes(std::span(&of_samples, 1)));
    for (const PackedTexts& sequence : sequences_) {
      const size_t count = sequence.members.size();
      hasher.update(std::as_bytes(std::span(&count, 1)));
      hasher.update(std::as_bytes(std::span(sequence.members)));
    }
    fingerprint_ = hasher.digest();
  }

  [[nodiscard]] int64_t size() const override { return std::ssize(sequences_); }
  [[nodiscard]] bool is_text() const override { return samples_->is_text(); }

  [[nodiscard]] Sample sample(int64_t index) const override {
    CLEAVE_CHECK(index >= 0 && index < size(), Code::kUsage, "sample ", index,
                 " does not exist; there are ", size());
    const std::vector<int64_t>& members = sequences_[static_cast<size_t>(index)].members;
    if (members.size() == 1) return samples_->sample(members.front());
    Sample out;
    bool has_mask = false;
    bool has_types = false;
    for (const int64_t member : members) {
      const Sample text = samples_->sample(member);
      const size_t begin = out.ids.size();
      const size_t count = text.ids.size();
      has_mask = has_mask || !text.attention_mask.empty();
      has_types = has_types || !text.token_types.empty();
      append(out.ids, text.ids, count, 0);
      append(out.labels, labels_of(text), count, kNoLabel);
      out.labels[begin] = kNoLabel;
      append(out.attention_mask, text.attention_mask, count, 1);
      append(out.token_types, text.token_types, count, 0);
      out.positions.resize(begin + count);
      std::iota(out.positions.begin() + static_cast<int64_t>(begin), out.positions.end(), 0);
    }
    if (!has_mask) out.attention_mask.clear();
    if (!has_types) out.token_types.clear();
    return out;
  }

  [[nodiscard]] uint64_t fingerprint() const override { return fingerprint_; }

  /// That of sample(), without reading any.
  [[nodiscard]] Utilization utilization() const {
    Utilization sum{.sequences = size()};
    for (const PackedTexts& sequence : sequences_) {
      sum.texts += std::ssize(sequence.members);
      sum.tokens += sequence.tokens;
      sum.longest = std::max(sum.longest, sequence.tokens);
    }
    return sum;
  }

 private:
  std::shared_ptr<const Dataset> samples_;
  std::vector<PackedTexts> sequences_;
  uint64_t fingerprint_ = 0;
};

}  // namespace

std::shared_ptr<const Dataset> packed_samples(std::shared_ptr<const Dataset> samples,
                                              const PackingOptions& options) {
  CLEAVE_CHECK(options.seq_len > 0, Code::kUsage, "seq_len is ", options.seq_len,
               "; expected at least 1");
  return std::make_shared<PackedSamples>(std::move(samples), options);
}

double Utilization::padding() const {
  return 1 - static_cast<double>(tokens) / static_cast<double>(sequences * longest);
}

std::string Utilization::text() const {
  return str("at most ", std::round(1000 * padding()) / 10,
             " % of tokens: ", counted(texts, "text"), " in ", counted(sequences, "sequence"),
             " of up to ", longest);
}

Utilization utilization_of(const Dataset& data) {
  if (const auto* packed = dynamic_cast<const PackedSamples*>(&data)) return packed->utilization();
  Utilization sum{.sequences = data.size()};
  for (int64_t i = 0; i < data.size(); ++i) {
    const Sample sample = data.sample(i);
    const int64_t length = std::ssize(sample.ids);
    sum.texts += sample.positions.empty()
                     ? 1
                     : std::count(sample.positions.begin(), sample.positions.end(), 0);
    sum.tokens += length;
    sum.longest = std::max({sum.longest, length, std::ssize(sample.rejected_ids)});
  }
  return sum;
}

}  // namespace cleave::inline data
