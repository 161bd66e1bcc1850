#include "cleave/chat/jinja/expression_parser.h"

#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/base/str.h"
#include "tests/support/thrown.h"

namespace cleave::jinja {
namespace {

using Kind = Expr::Kind;

std::string printed(const Expr* e);

/// The children from `first` on, and the named arguments.
std::string list_of(const Expr& e, size_t first = 0) {
  std::vector<std::string> parts;
  for (size_t i = first; i < e.children.size(); ++i) parts.push_back(printed(e.children[i].get()));
  for (const auto& [name, value] : e.named) parts.push_back(name + "=" + printed(value.get()));
  return list_text(parts);
}

std::string constant(const Value& value) {
  if (value.is_none()) return "none";
  if (value.is_text()) return "'" + value.string() + "'";
  if (value.is<bool>()) return value.as<bool>() ? "true" : "false";
  return value.is<double>() ? str(value.as<double>()) : str(value.as<int64_t>());
}

/// a op b op c as ((a op b) op c).
std::string nested(const Expr& e, const std::string& op) {
  std::string text = printed(e.children[0].get());
  for (size_t i = 1; i < e.children.size(); ++i) {
    text = str("(", text, op, printed(e.children[i].get()), ")");
  }
  return text;
}

std::string dict(const Expr& e) {
  std::vector<std::string> members;
  for (size_t i = 0; i < e.children.size(); i += 2) {
    members.push_back(printed(e.children[i].get()) + ": " + printed(e.children[i + 1].get()));
  }
  return "{" + list_text(members) + "}";
}

std::string comparison(const Expr& e) {
  std::string text = printed(e.children[0].get());
  for (size_t i = 1; i < e.children.size(); ++i) {
    text += str(" ", e.operators[i - 1], " ", printed(e.children[i].get()));
  }
  return "(" + text + ")";
}

std::string concatenation(const Expr& e) {
  std::string text;
  for (const ExprPtr& part : e.children) text += (text.empty() ? "" : " ~ ") + printed(part.get());
  return "(" + text + ")";
}

/// An expression with all its brackets.
std::string printed(const Expr* e) {
  if (e == nullptr) return "";
  const auto child = [e](size_t i) { return printed(e->children[i].get()); };
  switch (e->kind) {
    case Kind::kConstant:
      return constant(e->value);
    case Kind::kName:
      return e->text;
    case Kind::kTuple:
      return "tuple(" + list_of(*e) + ")";
    case Kind::kList:
      return "[" + list_of(*e) + "]";
    case Kind::kDict:
      return dict(*e);
    case Kind::kAttribute:
      return child(0) + "." + e->text;
    case Kind::kItem:
      return str(child(0), "[", child(1), "]");
    case Kind::kSlice:
      return str(child(0), "[", child(1), ":", child(2), ":", child(3), "]");
    case Kind::kCall:
      return str(child(0), "(", list_of(*e, 1), ")");
    case Kind::kFilter:
      return str("(", child(0), " | ", e->text, "(", list_of(*e, 1), "))");
    case Kind::kTest:
      return str("(", child(0), " is ", e->text, "(", list_of(*e, 1), "))");
    case Kind::kUnary:
      return str("(", e->text, " ", child(0), ")");
    case Kind::kBinary:
      return str("(", child(0), " ", e->text, " ", child(1), ")");
    case Kind::kAnd:
      return nested(*e, " and ");
    case Kind::kOr:
      return nested(*e, " or ");
    case Kind::kCompare:
      return comparison(*e);
    case Kind::kConcatenate:
      return concatenation(*e);
    case Kind::kCondition:
      return str("(", child(0), " if ", child(1), child(2).empty() ? "" : " else ", child(2), ")");
    case Kind::kSpread:
      return e->text + child(0);
  }
  return "";
}

std::string parsed(const std::string& text) {
  TokenCursor tokens(tokenize("{{ " + text + " }}"));
  tokens.next();
  const ExprPtr expression = ExpressionParser(tokens).tuple();
  tokens.expect(Token::Type::kPrintEnd, "}}");
  return printed(expression.get());
}

void expect_parsed(const std::vector<std::pair<std::string, std::string>>& cases) {
  for (const auto& [text, brackets] : cases) EXPECT_EQ(parsed(text), brackets) << text;
}

// The expected brackets are those of the tree that Jinja 3.1.6 parses.

TEST(JinjaExpressions, Operators_HaveJinjasPrecedence) {
  expect_parsed({
      {"a + b * c", "(a + (b * c))"},
      {"a * b + c", "((a * b) + c)"},
      {"a - b - c", "((a - b) - c)"},
      {"a + b ~ c * d", "(a + (b ~ (c * d)))"},
      {"a ~ b + c ~ d", "((a ~ b) + (c ~ d))"},
      {"a ** b ** c", "((a ** b) ** c)"},
      {"-a ** b", "((- a) ** b)"},
      {"a * -b", "(a * (- b))"},
      {"-a.b[0](1)", "(- a.b[0](1))"},
      {"-a | abs", "((- a) | abs())"},
      {"+a - -b", "((+ a) - (- b))"},
      {"a // b % c / d", "(((a // b) % c) / d)"},
      {"a or b and not c", "(a or (b and (not c)))"},
      {"not a or b", "((not a) or b)"},
      {"not a in b", "(not (a in b))"},
      {"a not in b", "(a not in b)"},
      {"a < b <= c != d", "(a < b <= c != d)"},
      {"(a < b) < c", "((a < b) < c)"},
      {"a == b and c > d or e", "(((a == b) and (c > d)) or e)"},
      {"a in b ~ c", "(a in (b ~ c))"},
      {"a if b else c if d else e", "(a if b else (c if d else e))"},
      {"a if b", "(a if b)"},
  });
}

TEST(JinjaExpressions, Values_KeepTheirParts) {
  expect_parsed({
      {"(a, b)", "tuple(a, b)"},
      {"(a,)", "tuple(a)"},
      {"()", "tuple()"},
      {"a, b", "tuple(a, b)"},
      {"[a, [b, 1.5], ]", "[a, [b, 1.5]]"},
      {"{'a': 1, b: {}}", "{'a': 1, b: {}}"},
      {"a.b.c", "a.b.c"},
      {"a.0.b", "a[0].b"},
      {"a[1]", "a[1]"},
      {"a[1:]", "a[1::]"},
      {"a[:b]", "a[:b:]"},
      {"a[::-1]", "a[::(- 1)]"},
      {"a[1:2:3]", "a[1:2:3]"},
      {"f()", "f()"},
      {"f(a, *b, **c)", "f(a, *b, **c)"},
      {"f(a, b=1, c='x',)", "f(a, b=1, c='x')"},
      {"f(a)(b).c", "f(a)(b).c"},
      {"'a' 'b' ~ \"c\"", "('ab' ~ 'c')"},
      {"true and True or False", "((true and true) or false)"},
      {"1_000 + 2.5", "(1000 + 2.5)"},
      {"none", "none"},
      {"None", "none"},
  });
}

TEST(JinjaExpressions, FiltersAndTests_BindTighterThanOperators) {
  expect_parsed({
      {"a | f | g(1) | h(k=2)", "(((a | f()) | g(1)) | h(k=2))"},
      {"(a | f).b", "(a | f()).b"},
      {"a.b | f == c", "((a.b | f()) == c)"},
      {"a + b | f", "(a + (b | f()))"},
      {"a is f", "(a is f())"},
      {"a is not f", "(not (a is f()))"},
      {"a is f b", "(a is f(b))"},
      {"a is f(b, c)", "(a is f(b, c))"},
      {"a is not f and b", "((not (a is f())) and b)"},
      {"a is f == b", "((a is f()) == b)"},
      {"a is f or b", "((a is f()) or b)"},
      {"not a is f", "(not (a is f()))"},
      {"a | f is g", "((a | f()) is g())"},
      {"-a is f", "((- a) is f())"},
      {"a is f [b]", "(a is f([b]))"},
      {"a is f -1", "((a is f()) - 1)"},
      // Dots belong to the name; the argument has its own.
      {"a is f.g", "(a is f.g())"},
      {"a is f.g b.c", "(a is f.g(b.c))"},
      {"a | f.g(b) | h", "((a | f.g(b)) | h())"},
  });
}

TEST(JinjaExpressions, Names_AreNumberedAsTheyAppear) {
  TokenCursor tokens(tokenize("{{ b + a.c + b | f }}"));
  tokens.next();
  ExpressionParser parser(tokens);
  (void)parser.whole();
  EXPECT_EQ(parser.number_of("a"), 1);
  EXPECT_EQ(parser.number_of("new"), 2);
  EXPECT_EQ(parser.take_names(), (std::vector<std::string>{"b", "a", "new"}));
}

TEST(JinjaExpressions, BrokenOnes_AreRefusedWithTheirLine) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"a +", "line 1: expected a value"},
      {"\na b", "line 2: expected }}; the template has 'b' here"},
      {"a[]", "expected an index before ']'"},
      {"a[1:2:3:4]", "a slice has more than three parts"},
      {"a[1 2]", "expected ']'"},
      {"a.'b'", "expected a name after '.'"},
      {"f(a=1, b)", "a value follows a named argument"},
      {"f(a b)", "expected ','"},
      {"a | 1", "expected the name of a filter"},
      {"a is 1", "expected the name of a test"},
      {"{a}", "expected ':'"},
      {"99999999999999999999", "an integer has too many digits"},
      {std::string(101, '[') + std::string(101, ']'), "an expression has too many levels"}};
  for (const auto& [text, message] : cases) {
    const Error error = test::thrown_by([&, &text = text] { (void)parsed(text); });
    EXPECT_EQ(error.code(), Code::kFormat) << text;
    EXPECT_THAT(error.what(), testing::HasSubstr(message)) << text;
  }
}

TEST(JinjaExpressions, LongSums_AreRefusedBeforeTheStackEnds) {
  std::string sum = "a";
  for (int i = 0; i < 200; ++i) sum += " + a";
  EXPECT_EQ(parsed(sum).size(), 201U + 200 * 5);  // names; operators with brackets
  for (int i = 0; i < 100; ++i) sum += " + a";
  const Error error = test::thrown_by([&] { (void)parsed(sum); });
  EXPECT_THAT(error.what(), testing::HasSubstr("an expression has too many operations"));
}

}  // namespace
}  // namespace cleave::jinja
