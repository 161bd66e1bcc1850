#pragma once
#include <sstream>
#include <string>

namespace cleave {

/// Joins streamable parts into a string: str("tp=", 4) is "tp=4".
template <class... Parts>
std::string str(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return std::move(out).str();
}

}  // namespace cleave
