#include <algorithm>
#include <span>
#include <utility>

#include "cleave/base/error.h"
#include "cleave/base/hash.h"
#include "cleave/data/dataset_kinds.h"

namespace cleave::inline data {
namespace {

class PackedDataset final : public Dataset {
 public:
  PackedDataset(std::vector<Tokens> parts, int64_t seq_len)
      : parts_(std::move(parts)), seq_len_(seq_len) {
    std::vector<uint64_t> identity{static_cast<uint64_t>(seq_len)};
    for (const Tokens& part : parts_) {
      starts_.push_back(num_tokens_);
      num_tokens_ += part.size();
      identity.push_back(static_cast<uint64_t>(part.size()));
      identity.push_back(part.checksum());
    }
    fingerprint_ = hash_bytes(std::as_bytes(std::span(identity)));
  }

  [[nodiscard]] int64_t size() const override { return num_tokens_ / seq_len_; }
  [[nodiscard]] bool is_text() const override { return true; }
  [[nodiscard]] uint64_t fingerprint() const override { return fingerprint_; }

  [[nodiscard]] Sample sample(int64_t index) const override {
    CLEAVE_CHECK(index >= 0 && index < size(), Code::kUsage, "sample ", index,
                 " does not exist; there are ", size());
    Sample sample;
    sample.ids.resize(static_cast<size_t>(seq_len_));
    int64_t at = index * seq_len_;
    const auto after = std::upper_bound(starts_.begin(), starts_.end(), at);
    auto part = static_cast<size_t>(after - starts_.begin()) - 1;
    for (std::span<int64_t> rest = sample.ids; !rest.empty(); ++part) {
      const int64_t first = at - starts_[part];
      const int64_t count =
          std::min(static_cast<int64_t>(rest.size()), parts_[part].size() - first);
      parts_[part].copy(first, rest.first(static_cast<size_t>(count)));
      rest = rest.subspan(static_cast<size_t>(count));
      at += count;
    }
    return sample;
  }

 private:
  std::vector<Tokens> parts_;
  std::vector<int64_t> starts_;  // first token of each part, ascending
  int64_t seq_len_;
  int64_t num_tokens_ = 0;
  uint64_t fingerprint_ = 0;
};

}  // namespace

std::shared_ptr<const Dataset> packed_dataset(std::vector<Tokens> parts, int64_t seq_len) {
  CLEAVE_CHECK(seq_len > 0, Code::kUsage, "seq_len is ", seq_len, "; expected at least 1");
  return std::make_shared<PackedDataset>(std::move(parts), seq_len);
}

}  // namespace cleave::inline data
