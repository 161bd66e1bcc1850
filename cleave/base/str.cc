#include "cleave/base/str.h"

#include <array>
#include <charconv>
#include <limits>

namespace cleave::inline base {

std::string fixed_text(double value, int digits) {
  TextStream out;
  out.setf(std::ios::fixed);
  out.precision(digits);
  out << value;
  return std::move(out).str();
}

double rounded_to(double value, int digits) {
  std::array<char, 32> text{};  // printf and strtod would depend on the locale
  const auto written =
      std::to_chars(text.begin(), text.end(), value, std::chars_format::scientific, digits - 1);
  double result = std::numeric_limits<double>::quiet_NaN();
  std::from_chars(text.begin(), written.ptr, result);
  return result;
}

}  // namespace cleave::inline base
