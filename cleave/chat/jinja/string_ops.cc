#include "cleave/chat/jinja/string_ops.h"

#include <algorithm>
#include <charconv>
#include <memory>
#include <unicode/ucasemap.h>

#include "cleave/base/error.h"
#include "cleave/text/utf8.h"
#include "cleave/tokenizer/unicode.h"

namespace cleave::inline chat::jinja {
namespace {

bool is_space(char32_t c) {
  return (c >= 0x1C && c <= 0x1F) || is_white_space(c);
}

/// Bytes of the character that ends at `end`.
size_t last_character(std::string_view text, size_t end) {
  for (size_t bytes = 1; bytes <= 4 && bytes <= end; ++bytes) {
    const CodePoint c = next_code_point(text, end - bytes);
    if (c.valid && c.bytes == bytes) return bytes;
  }
  return 1;
}

using Convert = int32_t (*)(const UCaseMap*, char*, int32_t, const char*, int32_t, UErrorCode*);

std::string converted(std::string_view text, Convert convert) {
  UErrorCode status = U_ZERO_ERROR;
  const std::unique_ptr<UCaseMap, decltype(&ucasemap_close)> map(ucasemap_open("", 0, &status),
                                                                 &ucasemap_close);
  if (U_FAILURE(status) != 0) CLEAVE_BUG("ICU has no case map: ", u_errorName(status));
  // A character becomes at most three characters.
  std::string out(text.size() * 3 + 1, '\0');
  const int32_t size = convert(map.get(), out.data(), static_cast<int32_t>(out.size()), text.data(),
                               static_cast<int32_t>(text.size()), &status);
  if (U_FAILURE(status) != 0) CLEAVE_BUG("ICU converts no letters: ", u_errorName(status));
  out.resize(static_cast<size_t>(size));
  return out;
}

std::vector<std::string_view> split_at_space(std::string_view text, int64_t max_splits) {
  std::vector<std::string_view> out;
  std::string_view rest = strip(text, std::nullopt, Side::kLeft);
  while (!rest.empty()) {
    if (max_splits >= 0 && static_cast<int64_t>(out.size()) == max_splits) {
      out.push_back(strip(rest, std::nullopt, Side::kRight));
      break;
    }
    size_t end = 0;
    while (end < rest.size()) {
      const CodePoint c = next_code_point(rest, end);
      if (is_space(c.value)) break;
      end += c.bytes;
    }
    out.push_back(rest.substr(0, end));
    rest = strip(rest.substr(end), std::nullopt, Side::kLeft);
  }
  return out;
}

std::vector<std::string_view> split_at_space_from_right(std::string_view text, int64_t max_splits) {
  std::vector<std::string_view> out;
  std::string_view rest = strip(text, std::nullopt, Side::kRight);
  while (!rest.empty()) {
    if (max_splits >= 0 && static_cast<int64_t>(out.size()) == max_splits) {
      out.push_back(strip(rest, std::nullopt, Side::kLeft));
      break;
    }
    size_t begin = rest.size();
    while (begin > 0) {
      const size_t bytes = last_character(rest, begin);
      if (is_space(next_code_point(rest, begin - bytes).value)) break;
      begin -= bytes;
    }
    out.push_back(rest.substr(begin));
    rest = strip(rest.substr(0, begin), std::nullopt, Side::kRight);
  }
  std::reverse(out.begin(), out.end());
  return out;
}

}  // namespace

std::string_view strip(std::string_view text, std::optional<std::string_view> set, Side side) {
  const auto drops = [&](size_t at, size_t bytes) {
    const std::string_view one = text.substr(at, bytes);
    return set ? set->find(one) != std::string_view::npos : is_space(next_code_point(one, 0).value);
  };
  size_t begin = 0;
  size_t end = text.size();
  while (side != Side::kRight && begin < end) {
    const size_t bytes = next_code_point(text, begin).bytes;
    if (!drops(begin, bytes)) break;
    begin += bytes;
  }
  while (side != Side::kLeft && end > begin) {
    const size_t bytes = last_character(text, end);
    if (!drops(end - bytes, bytes)) break;
    end -= bytes;
  }
  return text.substr(begin, end - begin);
}

std::vector<std::string_view> characters(std::string_view text) {
  std::vector<std::string_view> out;
  for (size_t at = 0; at < text.size(); at += out.back().size()) {
    out.push_back(text.substr(at, next_code_point(text, at).bytes));
  }
  return out;
}

std::string_view character_at(std::string_view text, int64_t index) {
  for (; index > 0; --index) text.remove_prefix(next_code_point(text, 0).bytes);
  return text.substr(0, next_code_point(text, 0).bytes);
}

int64_t num_characters(std::string_view text) {
  int64_t count = 0;
  for (size_t at = 0; at < text.size(); at += next_code_point(text, at).bytes) ++count;
  return count;
}

std::vector<std::string_view> split(std::string_view text,
                                    std::optional<std::string_view> separator, int64_t max_splits,
                                    bool from_right) {
  if (!separator) {
    return from_right ? split_at_space_from_right(text, max_splits)
                      : split_at_space(text, max_splits);
  }
  std::vector<std::string_view> out;
  while (max_splits < 0 || static_cast<int64_t>(out.size()) < max_splits) {
    const size_t at = from_right ? text.rfind(*separator) : text.find(*separator);
    if (at == std::string_view::npos) break;
    if (from_right) {
      out.push_back(text.substr(at + separator->size()));
      text = text.substr(0, at);
    } else {
      out.push_back(text.substr(0, at));
      text.remove_prefix(at + separator->size());
    }
  }
  out.push_back(text);
  if (from_right) std::reverse(out.begin(), out.end());
  return out;
}

std::vector<std::string_view> split_lines(std::string_view text) {
  std::vector<std::string_view> out;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = next_code_point(text, at);
    const bool ends = (c.value >= 0x0A && c.value <= 0x0D) ||
                      (c.value >= 0x1C && c.value <= 0x1E) || c.value == 0x85 ||
                      c.value == 0x2028 || c.value == 0x2029;
    at += c.bytes;
    if (!ends) continue;
    out.push_back(text.substr(begin, at - c.bytes - begin));
    if (c.value == '\r' && at < text.size() && text[at] == '\n') ++at;
    begin = at;
  }
  if (begin < text.size()) out.push_back(text.substr(begin));
  return out;
}

std::string replace(std::string_view text, std::string_view from, std::string_view to,
                    int64_t count) {
  std::string out;
  if (from.empty()) {  // Python inserts `to` before each character and at the end
    for (const std::string_view one : characters(text)) {
      if (count != 0) out += to;
      if (count > 0) --count;
      out += one;
    }
    if (count != 0) out += to;
    return out;
  }
  for (; count != 0; --count) {
    const size_t at = text.find(from);
    if (at == std::string_view::npos) break;
    out += text.substr(0, at);
    out += to;
    text.remove_prefix(at + from.size());
  }
  return out += text;
}

std::string upper(std::string_view text) {
  return converted(text, &ucasemap_utf8ToUpper);
}

std::string lower(std::string_view text) {
  return converted(text, &ucasemap_utf8ToLower);
}

std::string capitalize(std::string_view text) {
  const size_t first = next_code_point(text, 0).bytes;
  return upper(text.substr(0, first)) + lower(text.substr(first));
}

std::string title(std::string_view text, bool (*separates)(char32_t)) {
  std::string out;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = next_code_point(text, at);
    if (separates(c.value)) {
      out += capitalize(text.substr(begin, at - begin));
      out += text.substr(at, c.bytes);
      begin = at + c.bytes;
    }
    at += c.bytes;
  }
  return out += capitalize(text.substr(begin));
}

bool is_letter(char32_t c) {
  static const CharacterSet* letters = category_set("L");
  return letters->contains(c);
}

std::optional<int64_t> parse_integer(std::string_view text, int base) {
  text = strip(text, std::nullopt);
  if (text.starts_with('+') && text.size() > 1 && text[1] != '-') text.remove_prefix(1);
  int64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value, base);
  if (error != std::errc() || stop != end) return std::nullopt;
  return value;
}

std::optional<double> parse_float(std::string_view text) {
  text = strip(text, std::nullopt);
  if (text.starts_with('+') && text.size() > 1 && text[1] != '-') text.remove_prefix(1);
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end) return std::nullopt;
  return value;
}

}  // namespace cleave::inline chat::jinja
