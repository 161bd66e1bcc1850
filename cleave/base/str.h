#pragma once
#include <sstream>
#include <string>
#include <string_view>

namespace cleave {

/// Joins streamable parts into a string: str("tp=", 4) is "tp=4".
template <class... Parts>
std::string str(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return std::move(out).str();
}

/// "1 step", "2 steps".
template <class Number>
std::string counted(Number count, std::string_view noun) {
  return str(count, ' ', noun, count == 1 ? "" : "s");
}

}  // namespace cleave
