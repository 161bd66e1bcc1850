#include "cleave/text/utf8.h"

#include "cleave/base/error.h"

namespace cleave::inline text {
namespace {

/// Properties of a lead byte. Source: Unicode 15, table 3-7 (well-formed UTF-8).
struct Lead {
  uint32_t length = 0;  // bytes of the character; 0: not a lead byte
  uint8_t low = 0x80;   // range of the second byte
  uint8_t high = 0xBF;
};

Lead lead_of(uint8_t byte) {
  if (byte < 0xC2) return {};
  if (byte < 0xE0) return {2};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {};
}

uint8_t byte_at(std::string_view text, size_t at) {
  return static_cast<uint8_t>(text[at]);
}

/// Number of valid bytes of the character whose lead byte is at `at`: 1 to lead.length.
uint32_t matching_bytes(std::string_view text, size_t at, const Lead& lead) {
  uint32_t count = 1;
  while (count < lead.length && at + count < text.size()) {
    const uint8_t byte = byte_at(text, at + count);
    const bool fits =
        count == 1 ? byte >= lead.low && byte <= lead.high : byte >= 0x80 && byte <= 0xBF;
    if (!fits) break;
    ++count;
  }
  return count;
}

}  // namespace

CodePoint next_code_point(std::string_view text, size_t at) {
  if (at >= text.size()) return {};
  const uint8_t first = byte_at(text, at);
  if (first < 0x80) return {first, 1, true};
  const Lead lead = lead_of(first);
  if (lead.length == 0) return {kReplacement, 1, false};
  const uint32_t count = matching_bytes(text, at, lead);
  if (count < lead.length) return {kReplacement, count, false};
  char32_t value = first & (0xFFU >> (lead.length + 1));
  for (uint32_t i = 1; i < count; ++i) value = (value << 6) | (byte_at(text, at + i) & 0x3FU);
  return {value, count, true};
}

size_t first_bad_utf8(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    if (byte_at(text, at) < 0x80) {
      ++at;
      continue;
    }
    const CodePoint point = next_code_point(text, at);
    if (!point.valid) return at;
    at += point.bytes;
  }
  return at;
}

void require_utf8_file(const std::string& path, std::string_view begin) {
  CLEAVE_CHECK(!begin.starts_with("\xff\xfe") && !begin.starts_with("\xfe\xff"), Code::kFormat,
               path, " is UTF-16 text; convert it to UTF-8: iconv -f UTF-16 -t UTF-8");
  CLEAVE_CHECK(!begin.starts_with("\x1f\x8b"), Code::kFormat, path,
               " is compressed by gzip; unpack it: gunzip -k ", path);
}

void append_utf8(std::string& out, char32_t value) {
  const auto put = [&out](char32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (value < 0x80) return put(value);
  if (value < 0x800) {
    put(0xC0 | (value >> 6));
  } else if (value < 0x10000) {
    put(0xE0 | (value >> 12));
    put(0x80 | ((value >> 6) & 0x3F));
  } else {
    put(0xF0 | (value >> 18));
    put(0x80 | ((value >> 12) & 0x3F));
    put(0x80 | ((value >> 6) & 0x3F));
  }
  put(0x80 | (value & 0x3F));
}

std::string replace_bad_utf8(std::string_view text) {
  const size_t good = first_bad_utf8(text);
  std::string out(text.substr(0, good));
  for (size_t at = good; at < text.size();) {
    const CodePoint point = next_code_point(text, at);
    append_utf8(out, point.value);
    at += point.bytes;
  }
  return out;
}

size_t unfinished_utf8_tail(std::string_view text) {
  for (size_t back = 1; back <= 3 && back <= text.size(); ++back) {
    const size_t at = text.size() - back;
    const Lead lead = lead_of(byte_at(text, at));
    if (lead.length == 0) continue;
    const bool unfinished = lead.length > back && matching_bytes(text, at, lead) == back;
    return unfinished ? back : 0;
  }
  return 0;
}

}  // namespace cleave::inline text
