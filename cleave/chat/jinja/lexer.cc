#include <algorithm>
#include <array>
#include <cctype>
#include <optional>

#include "cleave/chat/jinja/string_ops.h"
#include "cleave/chat/jinja/syntax.h"
#include "cleave/text/utf8.h"

namespace cleave::inline chat::jinja {
namespace {

using Type = Token::Type;

constexpr std::string_view kSpace = " \t\n\r\f\v";

bool is_name_start(char c) {
  return std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_' ||
         static_cast<unsigned char>(c) >= 0x80;
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

bool is_name_part(char c) {
  return is_name_start(c) || is_digit(c);
}

/// The text with line ends of one character, without the last line end, as Jinja reads it.
std::string with_plain_lines(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\r') {
      if (i + 1 == text.size() || text[i + 1] != '\n') out.push_back('\n');
    } else {
      out.push_back(text[i]);
    }
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(with_plain_lines(text)) {}

  std::vector<Token> run() {
    while (at_ < text_.size()) {
      const size_t begin = next_tag();
      if (begin == std::string::npos) {
        add(Type::kData, text_.substr(at_));
        break;
      }
      const char sign = begin + 2 < text_.size() ? text_[begin + 2] : ' ';
      data_before(begin, sign);
      at_ = begin + 2 + (sign == '-' || sign == '+' ? 1 : 0);
      if (text_[begin + 1] == '#') {
        comment();
      } else if (text_[begin + 1] == '%' && raw_begins()) {
        raw();
      } else {
        tag(text_[begin + 1] == '{');
      }
    }
    add(Type::kEnd, "");
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void refuse(const std::string& message) {
    fail(str("line ", line_at(at_), ": ", message));
  }

  int line_at(size_t end) {
    line_ += static_cast<int>(std::count(text_.begin() + static_cast<ptrdiff_t>(counted_),
                                         text_.begin() + static_cast<ptrdiff_t>(end), '\n'));
    counted_ = std::max(counted_, end);
    return line_;
  }

  void add(Type type, std::string text) {
    if (type == Type::kData && text.empty()) return;
    tokens_.push_back({type, std::move(text), line_at(std::max(at_, counted_))});
  }

  /// Position of the next "{{", "{%" or "{#".
  [[nodiscard]] size_t next_tag() const {
    for (size_t i = at_; i + 1 < text_.size(); ++i) {
      if (text_[i] == '{' && (text_[i + 1] == '{' || text_[i + 1] == '%' || text_[i + 1] == '#')) {
        return i;
      }
    }
    return std::string::npos;
  }

  /// Adds the text before a tag. "-" removes white space before it; else lstrip_blocks removes the
  /// white space between a block or comment and the beginning of its line, unless "+".
  void data_before(size_t begin, char sign) {
    std::string data = text_.substr(at_, begin - at_);
    if (sign == '-') {
      data = std::string(strip(data, std::nullopt, Side::kRight));
    } else if (sign != '+' && text_[begin + 1] != '{') {
      const size_t line = data.rfind('\n');
      const size_t from = line == std::string::npos ? 0 : line + 1;
      const bool at_line_start = line != std::string::npos || after_line_end_;
      if (at_line_start && strip(std::string_view(data).substr(from), std::nullopt).empty()) {
        data.resize(from);
      }
    }
    add(Type::kData, std::move(data));
    after_line_end_ = false;
  }

  void skip_space() { at_ = std::min(text_.find_first_not_of(kSpace, at_), text_.size()); }

  /// After the end of a tag: "-" removes all white space, trim_blocks one line end.
  void after_tag(char sign, bool trims) {
    if (sign == '-') {
      const std::string_view rest = std::string_view(text_).substr(at_);
      at_ += rest.size() - strip(rest, std::nullopt, Side::kLeft).size();
    } else if (sign != '+' && trims && at_ < text_.size() && text_[at_] == '\n') {
      at_ += 1;
    }
    after_line_end_ = at_ > 0 && text_[at_ - 1] == '\n';
  }

  void comment() {
    // "{#-" may be "{#-#}", so the sign can belong to the end.
    const size_t end = text_.find("#}", at_ - (text_[at_ - 1] == '#' ? 0 : 1));
    if (end == std::string::npos) refuse("a comment has no end; expected #}");
    const char sign = text_[end - 1];
    at_ = end + 2;
    after_tag(sign, true);
  }

  /// Whether the block is {% raw %}; at_ is behind the opening sign.
  [[nodiscard]] bool raw_begins() {
    size_t i = text_.find_first_not_of(kSpace, at_);
    if (i == std::string::npos || text_.compare(i, 3, "raw") != 0) return false;
    i = text_.find_first_not_of(kSpace, i + 3);
    if (i == std::string::npos) return false;
    const char sign = text_[i] == '-' ? '-' : ' ';
    if (text_.compare(i + (sign == '-' ? 1 : 0), 2, "%}") != 0) return false;
    at_ = i + (sign == '-' ? 3 : 2);
    after_tag(sign, false);
    return true;
  }

  void raw() {
    for (size_t begin = text_.find("{%", at_); begin != std::string::npos;
         begin = text_.find("{%", begin + 2)) {
      const char sign = begin + 2 < text_.size() ? text_[begin + 2] : ' ';
      size_t i = text_.find_first_not_of(kSpace, begin + 2 + (sign == '-' || sign == '+' ? 1 : 0));
      if (i == std::string::npos || text_.compare(i, 6, "endraw") != 0) continue;
      i = text_.find_first_not_of(kSpace, i + 6);
      if (i == std::string::npos) continue;
      const char end_sign = text_[i] == '-' || text_[i] == '+' ? text_[i] : ' ';
      if (text_.compare(i + (end_sign == ' ' ? 0 : 1), 2, "%}") != 0) continue;
      data_before(begin, sign);
      at_ = i + (end_sign == ' ' ? 2 : 3);
      return after_tag(end_sign, true);
    }
    refuse("{% raw %} has no {% endraw %}");
  }

  /// Whether the tag ends here; moves behind its end.
  bool tag_ends(bool prints) {
    const std::string_view rest = std::string_view(text_).substr(at_);
    const std::string_view end = prints ? "}}" : "%}";
    const bool is_signed = !rest.empty() && (rest[0] == '-' || (rest[0] == '+' && !prints)) &&
                           rest.substr(1, 2) == end;
    if (!is_signed && !rest.starts_with(end)) return false;
    const char sign = is_signed ? rest[0] : ' ';
    add(prints ? Type::kPrintEnd : Type::kBlockEnd, "");
    at_ += is_signed ? 3 : 2;
    after_tag(sign, !prints);
    return true;
  }

  void tag(bool prints) {
    add(prints ? Type::kPrintBegin : Type::kBlockBegin, "");
    std::string open;  // brackets, inside of which the tag does not end
    for (skip_space(); at_ < text_.size(); skip_space()) {
      if (open.empty() && tag_ends(prints)) return;
      const char c = text_[at_];
      if (is_name_start(c)) {
        name();
      } else if (is_digit(c)) {
        number();
      } else if (c == '"' || c == '\'') {
        string(c);
      } else {
        operation(open);
      }
    }
    refuse(str("a tag has no end; expected ", prints ? "}}" : "%}"));
  }

  void name() {
    size_t end = at_;
    while (end < text_.size() && is_name_part(text_[end])) ++end;
    add(Type::kName, text_.substr(at_, end - at_));
    at_ = end;
  }

  /// End of the digits from `i`, which may have single underscores between them.
  [[nodiscard]] size_t digits_end(size_t i) const {
    while (i < text_.size() && (is_digit(text_[i]) || (text_[i] == '_' && i + 1 < text_.size() &&
                                                       is_digit(text_[i + 1])))) {
      ++i;
    }
    return i;
  }

  void number() {
    size_t end = digits_end(at_);
    bool is_float = false;
    const bool after_dot = !tokens_.empty() && tokens_.back().text == ".";
    if (!after_dot && end + 1 < text_.size() && text_[end] == '.' && is_digit(text_[end + 1])) {
      end = digits_end(end + 1);
      is_float = true;
    }
    if (!after_dot && end < text_.size() && (text_[end] == 'e' || text_[end] == 'E')) {
      const size_t sign =
          end + 1 < text_.size() && (text_[end + 1] == '-' || text_[end + 1] == '+') ? 1 : 0;
      if (end + 1 + sign < text_.size() && is_digit(text_[end + 1 + sign])) {
        end = digits_end(end + 1 + sign);
        is_float = true;
      }
    }
    std::string digits = text_.substr(at_, end - at_);
    std::erase(digits, '_');
    add(is_float ? Type::kFloat : Type::kInt, std::move(digits));
    at_ = end;
  }

  void string(char quote) {
    size_t end = at_ + 1;
    while (end < text_.size() && text_[end] != quote) end += size_t{text_[end] == '\\' ? 2U : 1U};
    if (end >= text_.size()) refuse(str("a string has no end; expected ", quote));
    add(Type::kString, unescaped(std::string_view(text_).substr(at_ + 1, end - at_ - 1)));
    at_ = end + 1;
  }

  /// The value of a string literal, with Python's escapes.
  std::string unescaped(std::string_view literal) {
    std::string out;
    for (size_t i = 0; i < literal.size(); ++i) {
      if (literal[i] != '\\') {
        out.push_back(literal[i]);
        continue;
      }
      const char c = literal[++i];
      constexpr std::string_view kLetters = "abfnrtv\\'\"";
      constexpr std::string_view kValues = "\a\b\f\n\r\t\v\\'\"";
      const size_t known = kLetters.find(c);
      if (known != std::string_view::npos) {
        out.push_back(kValues[known]);
      } else if (c == 'x' || c == 'u' || c == 'U') {
        const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        append_code(out, literal.substr(i + 1, digits), digits, 16);
        i += digits;
      } else if (c >= '0' && c <= '7') {
        const std::string_view most = literal.substr(i, 3);
        const size_t digits = std::min(most.find_first_not_of("01234567"), most.size());
        append_code(out, literal.substr(i, digits), digits, 8);
        i += digits - 1;
      } else if (c != '\n') {
        out += {'\\', c};
      }
    }
    return out;
  }

  void append_code(std::string& out, std::string_view digits, size_t count, int base) {
    const std::optional<int64_t> code =
        digits.size() == count ? parse_integer(digits, base) : std::nullopt;
    if (!code || *code < 0 || *code > 0x10FFFF || (*code >= 0xD800 && *code < 0xE000)) {
      refuse(str("the string has the escape '", digits, "', which is not a character"));
    }
    append_utf8(out, static_cast<char32_t>(*code));
  }

  void operation(std::string& open) {
    constexpr std::array<std::string_view, 24> kOperators{
        "//", "**", "==", "!=", ">=", "<=", "+", "-", "*", "/", "%", "~",
        "<",  ">",  "=",  ".",  ":",  "|",  ",", "(", ")", "[", "]", "{"};
    const std::string_view rest = std::string_view(text_).substr(at_);
    const auto* found = std::find_if(kOperators.begin(), kOperators.end(),
                                     [&](std::string_view op) { return rest.starts_with(op); });
    const std::string_view op = found != kOperators.end() ? *found : rest.substr(0, 1);
    if (found == kOperators.end() && op != "}") {
      refuse(str("unexpected character '", rest.substr(0, next_code_point(rest, 0).bytes), "'"));
    }
    if (op == "(" || op == "[" || op == "{") open += op;
    if (op == ")" || op == "]" || op == "}") {
      const char opening = op == ")" ? '(' : op == "]" ? '[' : '{';
      if (!open.ends_with(opening)) refuse(str("unexpected '", op, "'"));
      open.pop_back();
    }
    add(Type::kOperator, std::string(op));
    at_ += op.size();
  }

  std::string text_;
  size_t at_ = 0;
  size_t counted_ = 0;  // bytes whose lines are in line_
  int line_ = 1;
  bool after_line_end_ = true;  // the tag before consumed a line end, or none came before
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view text) {
  return Lexer(text).run();
}

}  // namespace cleave::inline chat::jinja
