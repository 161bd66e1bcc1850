#define PCRE2_CODE_UNIT_WIDTH 8
#include "cleave/tokenizer/regex.h"

#include <algorithm>
#include <array>
#include <pcre2.h>

#include "cleave/base/error.h"
#include "cleave/text/utf8.h"
#include "cleave/tokenizer/unicode.h"

namespace cleave::inline tokenizer {
namespace {

// Per match. A run of blanks needs a few steps per byte: \s+(?!\S) takes the last one back.
constexpr uint64_t kMaxSteps = 2'000'000;
constexpr uint64_t kMaxStepsPerByte = 16;

struct FreeMatch {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
struct FreeContext {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};

/// Oniguruma's \w consists of letters, marks, decimal digits, letter numbers, and these.
constexpr std::string_view kOtherWordCharacters =
    R"(_\x{203f}-\x{2040}\x{2054}\x{fe33}-\x{fe34}\x{fe4d}-\x{fe4f}\x{ff3f}\x{24b6}-\x{24e9})"
    R"(\x{1f130}-\x{1f149}\x{1f150}-\x{1f169}\x{1f170}-\x{1f189}\x{b2}-\x{b3}\x{b9}\x{bc}-\x{be})";

/// An escape for a class of characters (\s, \w, \p{L}, ...).
struct ClassEscape {
  std::string members, others;  ///< insides of character classes; others: the complement
  bool is_negated = false;
  size_t length = 0;  ///< bytes of the escape in the pattern; 0: not such an escape
};

ClassEscape class_of(const CharacterSet& set, bool is_negated, size_t length) {
  return {class_text(set), class_text(set.complement()), is_negated, length};
}

/// General categories: \p{Lu}, \P{L}, \p{^N}, \pL. Other properties are left to PCRE2.
ClassEscape property_at(std::string_view escape) {
  bool is_negated = escape[1] == 'P';
  if (escape.size() < 3) return {};
  std::string_view name = escape.substr(2, 1);
  size_t length = 3;
  if (name == "{") {
    const size_t end = escape.find('}');
    if (end == std::string_view::npos) return {};
    name = escape.substr(3, end - 3);
    length = end + 1;
    if (name.starts_with('^')) {
      is_negated = !is_negated;
      name.remove_prefix(1);
    }
  }
  const CharacterSet* set = category_set(name);
  return set == nullptr ? ClassEscape{} : class_of(*set, is_negated, length);
}

/// The class escape at the start of `escape`. Classes are replaced by explicit characters, because
/// PCRE2's classes depend on the Unicode version that it was built for.
ClassEscape class_at(std::string_view escape) {
  const char letter = escape.size() > 1 ? escape[1] : ' ';
  switch (letter) {
    case 's':
    case 'S':  // PCRE2's \s includes U+180E
      return {R"(\p{White_Space})", R"(\P{White_Space})", letter == 'S', 2};
    case 'd':
    case 'D':
      return class_of(*category_set("Nd"), letter == 'D', 2);
    case 'w':
    case 'W': {
      std::string members(kOtherWordCharacters);
      for (const char* name : {"L", "M", "Nd", "Nl"}) members += class_text(*category_set(name));
      return {members, {}, letter == 'W', 2};
    }
    case 'p':
    case 'P':
      return property_at(escape);
    default:
      return {};
  }
}

/// The replacement of the escape in a pattern; nullopt if it is left to PCRE2.
std::optional<std::string> written_out(const ClassEscape& found, bool in_class) {
  if (found.length == 0) return std::nullopt;
  if (!in_class) return str(found.is_negated ? "[^" : "[", found.members, "]");
  if (!found.is_negated) return found.members;
  if (found.others.empty()) return std::nullopt;
  return found.others;
}

/// The pattern with class escapes replaced by explicit characters, except \W inside a class.
std::string with_unicode_classes(std::string_view pattern) {
  std::string out;
  bool in_class = false;
  for (size_t i = 0; i < pattern.size();) {
    const char c = pattern[i];
    const bool is_escape = c == '\\';
    if (c == '[' || c == ']') in_class = c == '[';
    const ClassEscape found = is_escape ? class_at(pattern.substr(i)) : ClassEscape{};
    if (const auto text = written_out(found, in_class)) {
      out += *text;
      i += found.length;
    } else {
      const size_t length = is_escape ? 2 : 1;
      out += pattern.substr(i, length);
      i += length;
    }
  }
  return out;
}

}  // namespace

struct Regex::Compiled {
  pcre2_code* code = nullptr;

  Compiled() = default;
  Compiled(const Compiled&) = delete;
  Compiled& operator=(const Compiled&) = delete;
  ~Compiled() { pcre2_code_free(code); }

  void for_each_in_valid(std::string_view text, size_t base,
                         const std::function<void(size_t, size_t)>& found) const;
};

Regex::Regex(std::string_view pattern) {
  int error = 0;
  size_t at = 0;
  const std::string text = with_unicode_classes(pattern);
  auto code = std::make_shared<Compiled>();
  code->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                             PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
                             &error, &at, nullptr);
  if (code->code == nullptr) {
    std::array<char, 128> message{};
    pcre2_get_error_message(error, reinterpret_cast<PCRE2_UCHAR*>(message.data()), message.size());
    throw Error(Code::kFormat, str("the regular expression \"", pattern.substr(0, 60),
                                   "\" is wrong: ", message.data()));
  }
  // If the JIT compiler is not available (some hardened systems), matching is only slower.
  (void)pcre2_jit_compile(code->code, PCRE2_JIT_COMPLETE);
  code_ = std::move(code);
}

Regex Regex::from_json(const Json& pattern) {
  const std::string& text = pattern.as_string();
  try {
    return Regex(text);
  } catch (const Error& error) {
    pattern.fail(error.what());
  }
}

void Regex::Compiled::for_each_in_valid(std::string_view text, size_t base,
                                        const std::function<void(size_t, size_t)>& found) const {
  const std::unique_ptr<pcre2_match_data, FreeMatch> match(
      pcre2_match_data_create_from_pattern(code, nullptr));
  const std::unique_ptr<pcre2_match_context, FreeContext> context(
      pcre2_match_context_create(nullptr));
  CLEAVE_CHECK(match && context, Code::kMemory, "not enough memory to match a regular expression");
  const uint64_t max_steps = kMaxSteps + kMaxStepsPerByte * text.size();
  pcre2_set_match_limit(context.get(),
                        static_cast<uint32_t>(std::min<uint64_t>(max_steps, UINT32_MAX)));
  size_t at = 0;
  while (at < text.size()) {
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    const uint32_t options = PCRE2_NO_UTF_CHECK;
    int count = pcre2_match(code, subject, text.size(), at, options, match.get(), context.get());
    if (count == PCRE2_ERROR_JIT_STACKLIMIT) {
      count = pcre2_match(code, subject, text.size(), at, options | PCRE2_NO_JIT, match.get(),
                          context.get());
    }
    if (count < 0) return;
    const size_t* ends = pcre2_get_ovector_pointer(match.get());
    const size_t begin = ends[0];
    const size_t end = ends[1];
    if (begin < end) found(base + begin, base + end);
    // After an empty match, or one whose end \K put before its start, continue one character later.
    at = begin < end && end > at
             ? end
             : std::max(at, begin) + next_code_point(text, std::max(at, begin)).bytes;
    if (begin >= text.size()) return;
  }
}

void Regex::for_each(std::string_view text,
                     const std::function<void(size_t, size_t)>& found) const {
  for (size_t at = 0; at < text.size();) {
    const size_t length = first_bad_utf8(text.substr(at));
    if (length > 0) code_->for_each_in_valid(text.substr(at, length), at, found);
    at += length;
    at += next_code_point(text, at).bytes;
  }
}

std::string Regex::replace(std::string_view text, std::string_view content) const {
  std::string out;
  size_t last = 0;
  for_each(text, [&](size_t begin, size_t end) {
    out.append(text, last, begin - last);
    out += content;
    last = end;
  });
  out.append(text, last);
  return out;
}

Replacement Replacement::from_json(const Json& json) {
  const Json pattern = json.at("pattern");
  Replacement out("", json.at("content").as_string());
  if (pattern.has("Regex")) {
    out.regex_ = Regex::from_json(pattern.at("Regex"));
  } else {
    out.from_ = pattern.at("String").as_string();
  }
  return out;
}

std::string Replacement::apply(std::string_view text) const {
  if (regex_) return regex_->replace(text, to_);
  if (from_.empty()) return std::string(text);
  std::string out;
  out.reserve(text.size());
  size_t at = 0;
  for (size_t found = text.find(from_); found != std::string_view::npos;
       found = text.find(from_, at)) {
    out.append(text, at, found - at);
    out += to_;
    at = found + from_.size();
  }
  out.append(text, at);
  return out;
}

}  // namespace cleave::inline tokenizer
