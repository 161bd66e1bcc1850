#include "cleave/base/byte_count.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <string>

#include "cleave/base/str.h"

namespace cleave::inline base {

std::optional<uint64_t> bytes_from_text(std::string_view text) {
  uint64_t count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (error != std::errc() || count == 0) return std::nullopt;
  std::string unit(end, text.data() + text.size());
  std::transform(unit.begin(), unit.end(), unit.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  if (unit.empty() || unit == "B") return count;
  constexpr std::string_view kPrefixes = "KMGT";
  const size_t prefix = kPrefixes.find(unit[0]);
  if (prefix == std::string_view::npos) return std::nullopt;
  if (unit.substr(1) != "B" && unit.substr(1) != "IB") return std::nullopt;
  const uint64_t factor = unit.size() == 3 ? 1024 : 1000;
  for (size_t i = 0; i <= prefix; ++i) {
    if (__builtin_mul_overflow(count, factor, &count)) return std::nullopt;
  }
  return count;
}

std::string bytes_text(double bytes) {
  constexpr std::array kUnits{"bytes", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  for (; bytes >= 1024 && unit + 1 < kUnits.size(); ++unit) bytes /= 1024;
  return fixed_text(bytes, unit == 0 || bytes >= 100 ? 0 : 1) + ' ' + kUnits.at(unit);
}

}  // namespace cleave::inline base
