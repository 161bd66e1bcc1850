#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cleave::inline chat::jinja {

// Python's operations on strings, whose units are characters. Texts are UTF-8; malformed bytes
// count as one character each.

/// The ends of a string.
enum class Side : uint8_t { kBoth, kLeft, kRight };

/// Without the white space (or the characters of `set`) at its ends.
std::string_view strip(std::string_view text, std::optional<std::string_view> set,
                       Side side = Side::kBoth);
/// The characters.
std::vector<std::string_view> characters(std::string_view text);
/// The character at `index`, which must exist.
std::string_view character_at(std::string_view text, int64_t index);
/// Number of characters.
int64_t num_characters(std::string_view text);
/// The parts between separators, or between white space without one; at most `max_splits` splits,
/// -1: any number. With `from_right` the last separators are used. The separator is not empty.
std::vector<std::string_view> split(std::string_view text,
                                    std::optional<std::string_view> separator, int64_t max_splits,
                                    bool from_right);
/// The lines without their ends.
std::vector<std::string_view> split_lines(std::string_view text);
/// With the first `count` occurrences of `from` replaced; -1: all.
std::string replace(std::string_view text, std::string_view from, std::string_view to,
                    int64_t count);
std::string upper(std::string_view text);       ///< Python's str.upper()
std::string lower(std::string_view text);       ///< Python's str.lower()
std::string capitalize(std::string_view text);  ///< the first character upper, the others lower
/// Each word capitalized; words are what is between characters that `separates` accepts.
std::string title(std::string_view text, bool (*separates)(char32_t));
/// Whether the character is a letter, for str.title().
bool is_letter(char32_t c);
/// The number that the whole text spells; nullopt if it spells none or one outside of int64.
std::optional<int64_t> parse_integer(std::string_view text, int base);
/// As parse_integer, a decimal fraction.
std::optional<double> parse_float(std::string_view text);

}  // namespace cleave::inline chat::jinja
