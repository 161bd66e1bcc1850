#pragma once
#include <cstdint>
#include <utility>
#include <vector>

#include "cleave/data/dataset.h"

namespace cleave::test {

/// The given samples.
class ListDataset final : public Dataset {
 public:
  explicit ListDataset(std::vector<Sample> samples) : samples_(std::move(samples)) {}
  [[nodiscard]] int64_t size() const override { return std::ssize(samples_); }
  [[nodiscard]] bool is_text() const override { return true; }
  [[nodiscard]] Sample sample(int64_t index) const override {
    return samples_.at(static_cast<size_t>(index));
  }
  [[nodiscard]] uint64_t fingerprint() const override { return 7; }

 private:
  std::vector<Sample> samples_;
};

}  // namespace cleave::test
