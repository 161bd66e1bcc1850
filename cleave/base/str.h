#pragma once
#include <locale>
#include <sstream>
#include <string>
#include <string_view>

namespace cleave::inline base {

/// A stream for text. Numbers have the same form in every program: one that uses Cleave may set a
/// global locale with other separators.
class TextStream : public std::ostringstream {
 public:
  TextStream() { imbue(std::locale::classic()); }
};

/// A number with this many digits after the point, in every locale.
std::string fixed_text(double value, int digits);

/// A number rounded to this many decimal digits.
double rounded_to(double value, int digits);

/// The elements of a list, joined by commas: list_text(ranks) is "0, 2".
template <class List>
std::string list_text(const List& list) {
  TextStream out;
  const char* separator = "";
  for (const auto& element : list) {
    out << separator << element;
    separator = ", ";
  }
  return std::move(out).str();
}

/// The same in brackets, for shapes and indices: "[2, 3]".
template <class List>
std::string shape_text(const List& list) {
  return "[" + list_text(list) + "]";
}

/// Joins streamable parts into a string: str("tp=", 4) is "tp=4".
template <class... Parts>
std::string str(const Parts&... parts) {
  TextStream out;
  (out << ... << parts);
  return std::move(out).str();
}

/// "1 step", "2 steps".
template <class Number>
std::string counted(Number count, std::string_view noun) {
  return str(count, ' ', noun, count == 1 ? "" : "s");
}

}  // namespace cleave::inline base
