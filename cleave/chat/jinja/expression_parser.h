#pragma once
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "cleave/chat/jinja/syntax.h"

namespace cleave::inline chat::jinja {

/// A position in the tokens of a template.
class TokenCursor {
 public:
  explicit TokenCursor(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  /// The next token, and the one after it; kEnd at the end.
  [[nodiscard]] const Token& peek() const { return tokens_[at_]; }
  [[nodiscard]] const Token& peek_second() const;
  /// Returns the next token and moves behind it; stays at the end.
  const Token& next();

  /// Whether the next token is this operator, or this name.
  [[nodiscard]] bool is(std::string_view op) const;
  [[nodiscard]] bool is_name(std::string_view name) const;
  /// As is() and is_name(); moves behind the token if so.
  bool take(std::string_view op);
  bool take_name(std::string_view name);

  /// Moves behind the next token. Throws Error(kFormat) if it is another.
  void expect(Token::Type type, std::string_view what);
  void expect_operator(std::string_view op);
  std::string name(std::string_view what);

  /// Throws Error(kFormat) with the line of the next token.
  [[noreturn]] void refuse(const std::string& message) const;

 private:
  std::vector<Token> tokens_;
  size_t at_ = 0;
};

/// Parses expressions with Jinja's precedence.
class ExpressionParser {
 public:
  /// Reads from `tokens`, which must outlive the parser.
  explicit ExpressionParser(TokenCursor& tokens) : tokens_(tokens) {}

  /// An expression, with `a if b else c` unless excluded.
  ExprPtr whole(bool with_condition = true);
  /// An expression, or several with commas between them: a tuple.
  ExprPtr tuple(bool with_condition = true);
  /// The filters that follow `subject`; with `starts_inside` the first has no bar.
  ExprPtr filters(ExprPtr subject, bool starts_inside = false);

  /// The number of a name; a new one for a new name.
  int number_of(const std::string& name);
  /// All names by number.
  std::vector<std::string> take_names() { return std::move(names_); }

 private:
  ExprPtr make(Expr::Kind kind, ExprPtr first = nullptr, ExprPtr second = nullptr);
  void add(Expr& parent, ExprPtr child);
  ExprPtr condition();
  ExprPtr either();
  ExprPtr both();
  ExprPtr negation();
  ExprPtr comparison();
  ExprPtr sum();
  ExprPtr concatenation();
  ExprPtr product();
  ExprPtr power();
  ExprPtr unary(bool with_filters = true);
  ExprPtr primary();
  ExprPtr bracketed();
  ExprPtr dict();
  ExprPtr postfix(ExprPtr subject);
  ExprPtr one_postfix(ExprPtr subject);
  ExprPtr subscript(ExprPtr subject);
  ExprPtr filters_and_tests(ExprPtr subject);
  std::string dotted_name(const char* what);
  ExprPtr one_filter(ExprPtr subject);
  ExprPtr test(ExprPtr subject);
  void arguments(Expr& call);
  bool ends_tuple() const;

  TokenCursor& tokens_;
  std::unordered_map<std::string, int> numbers_;
  std::vector<std::string> names_;
  int depth_ = 0;
};

}  // namespace cleave::inline chat::jinja
