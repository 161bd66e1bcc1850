#include "cleave/tokenizer/unicode.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <sstream>
#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/uniset.h>
#include <unicode/unistr.h>
#include <utility>

#include "cleave/base/error.h"
#include "cleave/text/utf8.h"

namespace cleave::inline tokenizer {
namespace {

constexpr char32_t kLastCodePoint = 0x10FFFF;

/// Removes a number from the start of `text` and returns it; 1 if there is none.
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
  if (at != kLastCodePoint + 1) {
    CLEAVE_BUG("the table of categories ends at ", static_cast<uint32_t>(at));
  }
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

/// Every `step`-th character from `first` to `last` has the lower-case form character + `delta`.
struct LowerRun {
  char32_t first, last, step;
  int32_t delta;
};

std::vector<LowerRun> read_lower_runs() {
  std::vector<LowerRun> runs;
  std::istringstream numbers{std::string(kLowerRuns)};
  uint32_t first = 0;
  uint32_t last = 0;
  uint32_t step = 0;
  int32_t delta = 0;
  while (numbers >> first >> last >> step >> delta) runs.push_back({first, last, step, delta});
  return runs;
}

/// The characters of Unicode 11.0; ICU's data may be of a later version.
const icu::UnicodeSet& characters_of_unicode_11() {
  static const icu::UnicodeSet set = [] {
    UErrorCode status = U_ZERO_ERROR;
    icu::UnicodeSet found(icu::UnicodeString("[:age=11.0:]"), status);
    CLEAVE_CHECK(U_SUCCESS(status), Code::kIo, "ICU has no character data: ", u_errorName(status),
                 "; reinstall libicu");
    found.freeze();
    return found;
  }();
  return set;
}

const icu::Normalizer2& normalizer_of(NormalForm form) {
  UErrorCode status = U_ZERO_ERROR;
  const icu::Normalizer2* found = nullptr;
  switch (form) {
    case NormalForm::kNfc:
      found = icu::Normalizer2::getNFCInstance(status);
      break;
    case NormalForm::kNfd:
      found = icu::Normalizer2::getNFDInstance(status);
      break;
    case NormalForm::kNfkc:
      found = icu::Normalizer2::getNFKCInstance(status);
      break;
    case NormalForm::kNfkd:
      found = icu::Normalizer2::getNFKDInstance(status);
      break;
  }
  CLEAVE_CHECK(U_SUCCESS(status) && found != nullptr, Code::kIo,
               "ICU has no normalization data: ", u_errorName(status), "; reinstall libicu");
  return *found;
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
  if (at <= kLastCodePoint) out.push_back({at, kLastCodePoint});
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

bool is_white_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}
bool is_punctuation(char32_t c) {
  static const CharacterSet set = CharacterSet::from_runs(kPunctuationRuns);
  return set.contains(c);
}
bool is_number(char32_t c) {
  static const CharacterSet set = CharacterSet::from_runs(kNumberRuns);
  return set.contains(c);
}
bool is_accent(char32_t c) {
  static const CharacterSet set = CharacterSet::from_runs(kAccentRuns);
  return set.contains(c);
}
bool is_mark(char32_t c) {
  static const CharacterSet set = CharacterSet::from_runs(kMarkRuns);
  return set.contains(c);
}
bool is_control_or_format(char32_t c) {
  static const CharacterSet set = CharacterSet::from_runs(kDroppedRuns);
  return set.contains(c);
}
bool is_word_character(char32_t c) {
  // Connector punctuation (Pc), Join_Control, and circled letters, which are Alphabetic symbols.
  static const CharacterSet others({{0x5F, 0x5F},
                                    {0x200C, 0x200D},
                                    {0x203F, 0x2040},
                                    {0x2054, 0x2054},
                                    {0x24B6, 0x24E9},
                                    {0xFE33, 0xFE34},
                                    {0xFE4D, 0xFE4F},
                                    {0xFF3F, 0xFF3F},
                                    {0x1F130, 0x1F149},
                                    {0x1F150, 0x1F169},
                                    {0x1F170, 0x1F189}});
  static const CharacterSet* const letters = category_set("L");
  static const CharacterSet* const marks = category_set("M");
  static const CharacterSet* const digits = category_set("Nd");
  static const CharacterSet* const letter_numbers = category_set("Nl");
  return letters->contains(c) || digits->contains(c) || others.contains(c) || marks->contains(c) ||
         letter_numbers->contains(c);
}

size_t cluster_end(std::string_view text, size_t at) {
  static const CharacterSet joined = CharacterSet::from_runs(kJoinedRuns);
  static const CharacterSet joining = CharacterSet::from_runs(kJoiningRuns);
  static const CharacterSet alone = CharacterSet::from_runs(kAloneRuns);
  CodePoint point = next_code_point(text, at);
  size_t end = at + point.bytes;
  if (text.substr(at).starts_with("\r\n")) return at + 2;
  if (alone.contains(point.value)) return end;
  while (end < text.size()) {
    const CodePoint next = next_code_point(text, end);
    const bool continues = joined.contains(next.value) ||
                           (joining.contains(point.value) && !alone.contains(next.value));
    if (!continues) break;
    end += next.bytes;
    point = next;
  }
  return end;
}

// Source: the ranges of the package `tokenizers`, without U+2B820 to U+2B91F.
bool is_chinese_character(char32_t c) {
  return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) ||
         (c >= 0x20000 && c <= 0x2A6DF) || (c >= 0x2A700 && c <= 0x2B81F) ||
         (c >= 0x2B920 && c <= 0x2CEAF) || (c >= 0xF900 && c <= 0xFAFF) ||
         (c >= 0x2F800 && c <= 0x2FA1F);
}

void append_lower(std::string& out, char32_t c) {
  if (c < 0x80) {
    out.push_back(static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c));
    return;
  }
  if (c == 0x130) {  // the only character whose lower-case form has two characters
    out += "i\xCC\x87";
    return;
  }
  static const std::vector<LowerRun> runs = read_lower_runs();
  const auto after =
      std::upper_bound(runs.begin(), runs.end(), c,
                       [](char32_t value, const LowerRun& run) { return value < run.first; });
  if (after != runs.begin()) {
    const LowerRun& run = *(after - 1);
    if (c <= run.last && (c - run.first) % run.step == 0) {
      c = static_cast<char32_t>(static_cast<int32_t>(c) + run.delta);
    }
  }
  append_utf8(out, c);
}

std::string to_normal_form(std::string_view text, NormalForm form) {
  const std::string valid = replace_bad_utf8(text);
  CLEAVE_CHECK(valid.size() < INT32_MAX / 4, Code::kShape, "a text of ", valid.size(),
               " bytes is too long for one normalization; split it");
  std::string out;
  icu::StringByteSink<std::string> sink(&out, static_cast<int32_t>(valid.size()));
  UErrorCode status = U_ZERO_ERROR;
  const icu::UnicodeSet& known = characters_of_unicode_11();
  const auto size = static_cast<int32_t>(valid.size());
  if (known.spanUTF8(valid.data(), size, USET_SPAN_CONTAINED) == size) {
    normalizer_of(form).normalizeUTF8(0, valid, sink, nullptr, status);
  } else {
    const icu::FilteredNormalizer2 filtered(normalizer_of(form), known);
    filtered.normalizeUTF8(0, valid, sink, nullptr, status);
  }
  CLEAVE_CHECK(U_SUCCESS(status), Code::kMemory, "ICU cannot normalize a text of ", valid.size(),
               " bytes: ", u_errorName(status));
  return out;
}

}  // namespace cleave::inline tokenizer
