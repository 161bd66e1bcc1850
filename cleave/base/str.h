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

/// Joins the elements of a list: comma_list({1, 2}) is "1, 2".
template <class List>
std::string comma_list(const List& list) {
  std::string text;
  const char* separator = "";
  for (const auto& element : list) {
    text += str(separator, element);
    separator = ", ";
  }
  return text;
}

/// The same in brackets, as shapes and indices are printed: "[2, 3]".
template <class List>
std::string bracket_list(const List& list) {
  return "[" + comma_list(list) + "]";
}

}  // namespace cleave
