#include "cleave/tokenizer/unicode.h"

#include <array>
#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/uchar.h>
#include <unicode/ustring.h>

#include "cleave/base/error.h"
#include "cleave/text/utf8.h"

namespace cleave {
namespace {

uint32_t category(char32_t c) {
  return U_GET_GC_MASK(static_cast<UChar32>(c));
}

bool has(char32_t c, UProperty property) {
  return u_hasBinaryProperty(static_cast<UChar32>(c), property) != 0;
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
  return u_isUWhiteSpace(static_cast<UChar32>(c)) != 0;
}
bool is_nonspacing_mark(char32_t c) {
  return (category(c) & U_GC_MN_MASK) != 0;
}
bool is_combining_mark(char32_t c) {
  return (category(c) & U_GC_M_MASK) != 0;
}
bool is_punctuation(char32_t c) {
  return (category(c) & U_GC_P_MASK) != 0;
}
bool is_number(char32_t c) {
  return (category(c) & U_GC_N_MASK) != 0;
}
bool is_control_or_format(char32_t c) {
  return (category(c) & (U_GC_CC_MASK | U_GC_CF_MASK | U_GC_CO_MASK)) != 0;
}
bool is_word_character(char32_t c) {
  return (category(c) & (U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK)) != 0 ||
         has(c, UCHAR_ALPHABETIC) || has(c, UCHAR_JOIN_CONTROL);
}

// Source: the ranges of BERT's reference tokenizer (blocks of CJK unified ideographs).
bool is_chinese_character(char32_t c) {
  return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) ||
         (c >= 0x20000 && c <= 0x2A6DF) || (c >= 0x2A700 && c <= 0x2B73F) ||
         (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B820 && c <= 0x2CEAF) ||
         (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

void append_lower(std::string& out, char32_t c) {
  if (c < 0x80) {
    out.push_back(static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c));
    return;
  }
  std::array<UChar, 2> from{};
  int32_t units = 0;
  U16_APPEND_UNSAFE(from.data(), units, static_cast<UChar32>(c));
  std::array<UChar, 8> to{};
  std::array<char, 32> bytes{};
  UErrorCode status = U_ZERO_ERROR;
  const int32_t length =
      u_strToLower(to.data(), static_cast<int32_t>(to.size()), from.data(), units, "", &status);
  int32_t num_bytes = 0;
  u_strToUTF8(bytes.data(), static_cast<int32_t>(bytes.size()), &num_bytes, to.data(), length,
              &status);
  if (U_FAILURE(status)) return append_utf8(out, c);
  out.append(bytes.data(), static_cast<size_t>(num_bytes));
}

std::string to_normal_form(std::string_view text, NormalForm form) {
  const std::string valid = replace_bad_utf8(text);
  CLEAVE_CHECK(valid.size() < INT32_MAX / 4, Code::kShape, "a text of ", valid.size(),
               " bytes is too long to be normalised at once; give it in parts");
  std::string out;
  icu::StringByteSink<std::string> sink(&out, static_cast<int32_t>(valid.size()));
  UErrorCode status = U_ZERO_ERROR;
  normalizer_of(form).normalizeUTF8(0, valid, sink, nullptr, status);
  CLEAVE_CHECK(U_SUCCESS(status), Code::kMemory, "ICU cannot normalise a text of ", valid.size(),
               " bytes: ", u_errorName(status));
  return out;
}

}  // namespace cleave
