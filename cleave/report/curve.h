#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace cleave {

/// A curve as a page draws it. A bucket is a run of consecutive values; a curve of few values has
/// one per bucket.
struct Curve {
  std::vector<double> mean;  ///< of the finite values of each bucket; NaN if there are none
  std::vector<double> low;   ///< the smallest of them
  std::vector<double> high;  ///< the largest of them
};

/// Where each of at most `most` buckets of `total` values begins, then `total`. The sizes of
/// buckets differ by at most one.
std::vector<size_t> buckets(size_t total, size_t most);

/// The curve of `values` over buckets that begin at `begins`, as buckets() returns.
Curve decimated(std::span<const double> values, std::span<const size_t> begins);

}  // namespace cleave
