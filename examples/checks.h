// Checks of flags that CLI::Range does not make: it accepts NaN, and wraps integers beyond 64 bits.
#pragma once
#include <charconv>
#include <cstdint>
#include <string>
#include <system_error>

namespace examples {

// The message about a value of --lr; empty if it is a number from 0 to 1.
inline std::string check_rate(const std::string& text) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, problem] = std::from_chars(text.data(), end, value);
  const bool is_valid = problem == std::errc() && stop == end && value >= 0 && value <= 1;
  return is_valid ? "" : "'" + text + "' is not a number from 0 to 1";
}

// The message about a value of --seed; empty if it is an unsigned 64-bit integer.
inline std::string check_seed(const std::string& text) {
  uint64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, problem] = std::from_chars(text.data(), end, value);
  const bool is_valid = problem == std::errc() && stop == end;
  return is_valid ? "" : "'" + text + "' is not an integer from 0 to 18446744073709551615";
}

}  // namespace examples
