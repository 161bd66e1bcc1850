#include "cleave/tokenizer/unicode.h"

#include <algorithm>
#include <sstream>
#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/uniset.h>
#include <unicode/unistr.h>
#include <vector>

#include "cleave/base/error.h"
#include "cleave/text/utf8.h"
#include "cleave/tokenizer/character_set.h"
#include "cleave/tokenizer/unicode_tables.h"

namespace cleave {
namespace {

/// Every `step`th character from `first` to `last`: its lower-case form is `delta` away.
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

/// Characters that Unicode 11.0 has: ICU's own data may be of any later version.
const icu::UnicodeSet& characters_of_unicode_11() {
  static const icu::UnicodeSet set = [] {
    UErrorCode status = U_ZERO_ERROR;
    icu::UnicodeSet found(icu::UnicodeString("[:age=11.0:]"), status);
    CLEAVE_CHECK(U_SUCCESS(status), Code::kIo,
                 "ICU has no data of characters: ", u_errorName(status), "; reinstall libicu");
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
               "ICU has no normalisation data: ", u_errorName(status), "; reinstall libicu");
  return *found;
}

}  // namespace

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
  // Alphabetic beside letters: circled ones. Pc; Join_Control.
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

// Source: the ranges of the package `tokenizers`, where U+2B820 to U+2B91F are left out.
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
  if (c == 0x130) {  // the one character whose form has two
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
               " bytes is too long to be normalised at once; give it in parts");
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
  CLEAVE_CHECK(U_SUCCESS(status), Code::kMemory, "ICU cannot normalise a text of ", valid.size(),
               " bytes: ", u_errorName(status));
  return out;
}

}  // namespace cleave
