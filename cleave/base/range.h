#pragma once
#include <cstdint>
#include <vector>

namespace cleave::inline base {

/// Indices begin <= i < end of one dim.
struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  [[nodiscard]] int64_t size() const { return end - begin; }
  friend bool operator==(const Range&, const Range&) = default;
};

/// Some indices of one dim of a tensor: ascending ranges that do not overlap.
struct Slice {
  int64_t dim = 0;            ///< 0 <= dim < number of dims of the tensor
  std::vector<Range> ranges;  ///< empty: no index
  friend bool operator==(const Slice&, const Slice&) = default;
};

}  // namespace cleave::inline base
