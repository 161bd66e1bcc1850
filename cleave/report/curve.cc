#include <algorithm>
#include <cmath>

#include "cleave/report/page.h"

namespace cleave::inline report {

std::vector<size_t> buckets(size_t total, size_t most) {
  const size_t count = std::min(total, most);
  std::vector<size_t> begins;
  for (size_t i = 0; i < count; ++i) begins.push_back(i * total / count);
  begins.push_back(total);
  return begins;
}

Curve decimated(std::span<const double> values, std::span<const size_t> begins) {
  Curve curve;
  for (size_t i = 0; i + 1 < begins.size(); ++i) {
    double mean = NAN;
    double low = NAN;
    double high = NAN;
    int64_t count = 0;
    for (const double value : values.subspan(begins[i], begins[i + 1] - begins[i])) {
      if (!std::isfinite(value)) continue;
      ++count;
      mean = count == 1 ? value : mean + (value - mean) / static_cast<double>(count);
      low = std::fmin(low, value);  // fmin ignores a NaN
      high = std::fmax(high, value);
    }
    curve.mean.push_back(mean);
    curve.low.push_back(low);
    curve.high.push_back(high);
  }
  return curve;
}

}  // namespace cleave::inline report
