#include "cleave/tokenizer/character_set.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>

#include "cleave/base/error.h"
#include "cleave/tokenizer/unicode_tables.h"

namespace cleave {
namespace {

constexpr char32_t kLast = 0x10FFFF;

/// Takes a number off the front of `text`; 1 where there is none.
uint32_t take_number(std::string_view& text) {
  uint32_t number = 1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  if (text.starts_with(' ')) text.remove_prefix(1);
  return error == std::errc() ? number : 1;
}

using Categories = std::map<std::string, CharacterSet, std::less<>>;

void append(std::vector<CharacterRange>& ranges, const CharacterRange& range) {
  if (!ranges.empty() && ranges.back().last + 1 == range.first) {
    ranges.back().last = range.last;
  } else {
    ranges.push_back(range);
  }
}

Categories read_categories() {
  std::map<std::string, std::vector<CharacterRange>> found;
  std::string_view runs = kCategoryRuns;
  char32_t at = 0;
  while (!runs.empty()) {
    const char letter = runs.front();
    runs.remove_prefix(1);
    const int index = letter <= 'Z' ? letter - 'A' : letter - 'a' + 26;
    const std::string name(kCategories.substr(3 * static_cast<size_t>(index), 2));
    const CharacterRange range{at, at + take_number(runs) - 1};
    append(found[name], range);
    append(found[name.substr(0, 1)], range);
    at = range.last + 1;
  }
  if (at != kLast + 1) CLEAVE_BUG("the table of categories ends at ", static_cast<uint32_t>(at));
  Categories out;
  for (auto& [name, ranges] : found) out.emplace(name, CharacterSet(std::move(ranges)));
  return out;
}

std::string escaped(char32_t c) {
  std::array<char, 16> digits{};
  const auto [end, error] =
      std::to_chars(digits.data(), digits.data() + digits.size(), static_cast<uint32_t>(c), 16);
  return "\\x{" + std::string(digits.data(), end) + "}";
}

}  // namespace

CharacterSet::CharacterSet(std::vector<CharacterRange> ranges) : ranges_(std::move(ranges)) {
  for (const CharacterRange& range : ranges_) {
    for (char32_t c = range.first; c <= range.last && c < 128; ++c) ascii_.set(c);
  }
}

CharacterSet CharacterSet::from_runs(std::string_view runs) {
  std::vector<CharacterRange> ranges;
  char32_t at = 0;
  while (!runs.empty()) {
    at += take_number(runs);
    const uint32_t inside = take_number(runs);
    ranges.push_back({at, at + inside - 1});
    at += inside;
  }
  return CharacterSet(std::move(ranges));
}

bool CharacterSet::contains(char32_t c) const {
  if (c < 128) return ascii_.test(c);
  const auto after = std::upper_bound(
      ranges_.begin(), ranges_.end(), c,
      [](char32_t value, const CharacterRange& range) { return value < range.first; });
  return after != ranges_.begin() && c <= (after - 1)->last;
}

CharacterSet CharacterSet::complement() const {
  std::vector<CharacterRange> out;
  char32_t at = 0;
  for (const CharacterRange& range : ranges_) {
    if (range.first > at) out.push_back({at, range.first - 1});
    at = range.last + 1;
  }
  if (at <= kLast) out.push_back({at, kLast});
  return CharacterSet(std::move(out));
}

const CharacterSet* category_set(std::string_view name) {
  static const Categories categories = read_categories();
  const auto found = categories.find(name);
  return found == categories.end() ? nullptr : &found->second;
}

std::string class_text(const CharacterSet& set) {
  std::vector<CharacterRange> ranges;
  for (const CharacterRange& r : set.ranges()) {
    if (r.first < 0xD800) ranges.push_back({r.first, std::min<char32_t>(r.last, 0xD7FF)});
    if (r.last > 0xDFFF) ranges.push_back({std::max<char32_t>(r.first, 0xE000), r.last});
  }
  std::stable_sort(ranges.begin(), ranges.end(), [](const auto& a, const auto& b) {
    return a.last - a.first > b.last - b.first;
  });
  std::string out;
  for (const CharacterRange& r : ranges) {
    out += escaped(r.first);
    if (r.last > r.first) out += "-" + escaped(r.last);
  }
  return out;
}

}  // namespace cleave
