#pragma once
#include <algorithm>
#include <vector>

namespace cleave::inline base {

/// The median of at least one value; the mean of the two middle ones if their number is even.
inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

}  // namespace cleave::inline base
