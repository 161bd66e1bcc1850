#include "cleave/chat/jinja/expression_parser.h"

#include <algorithm>
#include <array>

#include "cleave/chat/jinja/string_ops.h"

namespace cleave::inline chat::jinja {
namespace {

using Type = Token::Type;
using Kind = Expr::Kind;

/// Limit of nested brackets, and of the height of an expression's tree. It bounds the recursion of
/// parsing, running and deleting an expression.
constexpr int kMaxDepth = 100;
constexpr int kMaxHeight = 250;

/// Counts a level while it lives.
class Level {
 public:
  Level(int& depth, const TokenCursor& tokens) : depth_(depth) {
    if (++depth_ > kMaxDepth) tokens.refuse("an expression has too many levels");
  }
  ~Level() { --depth_; }
  Level(const Level&) = delete;
  Level& operator=(const Level&) = delete;

 private:
  int& depth_;
};

}  // namespace

const Token& TokenCursor::peek_second() const {
  return tokens_[std::min(at_ + 1, tokens_.size() - 1)];
}

const Token& TokenCursor::next() {
  const Token& token = tokens_[at_];
  if (at_ + 1 < tokens_.size()) ++at_;
  return token;
}

bool TokenCursor::is(std::string_view op) const {
  return peek().type == Type::kOperator && peek().text == op;
}

bool TokenCursor::is_name(std::string_view name) const {
  return peek().type == Type::kName && peek().text == name;
}

bool TokenCursor::take(std::string_view op) {
  if (!is(op)) return false;
  next();
  return true;
}

bool TokenCursor::take_name(std::string_view name) {
  if (!is_name(name)) return false;
  next();
  return true;
}

void TokenCursor::expect(Type type, std::string_view what) {
  if (peek().type != type) refuse(str("expected ", what));
  next();
}

void TokenCursor::expect_operator(std::string_view op) {
  if (!take(op)) refuse(str("expected '", op, "'"));
}

std::string TokenCursor::name(std::string_view what) {
  if (peek().type != Type::kName) refuse(str("expected ", what));
  return next().text;
}

void TokenCursor::refuse(const std::string& message) const {
  const Token& token = peek();
  const bool has_text = token.type >= Type::kName && token.type <= Type::kOperator;
  fail(str("line ", token.line, ": ", message,
           has_text ? str("; the template has '", token.text.substr(0, 40), "' here") : ""));
}

int ExpressionParser::number_of(const std::string& name) {
  const auto [found, is_new] = numbers_.try_emplace(name, static_cast<int>(names_.size()));
  if (is_new) names_.push_back(name);
  return found->second;
}

ExprPtr ExpressionParser::make(Kind kind, ExprPtr first, ExprPtr second) {
  auto out = std::make_unique<Expr>();
  out->kind = kind;
  out->line = tokens_.peek().line;
  if (first) add(*out, std::move(first));
  if (second) add(*out, std::move(second));
  return out;
}

void ExpressionParser::add(Expr& parent, ExprPtr child) {
  if (child) parent.height = std::max(parent.height, child->height + 1);
  if (parent.height > kMaxHeight) tokens_.refuse("an expression has too many operations");
  parent.children.push_back(std::move(child));
}

ExprPtr ExpressionParser::whole(bool with_condition) {
  const Level level(depth_, tokens_);
  return with_condition ? condition() : either();
}

bool ExpressionParser::ends_tuple() const {
  const Type type = tokens_.peek().type;
  return type == Type::kPrintEnd || type == Type::kBlockEnd || tokens_.is(")");
}

ExprPtr ExpressionParser::tuple(bool with_condition) {
  ExprPtr first = whole(with_condition);
  if (!tokens_.is(",")) return first;
  ExprPtr out = make(Kind::kTuple, std::move(first));
  while (tokens_.take(",")) {
    if (ends_tuple()) break;
    add(*out, whole(with_condition));
  }
  return out;
}

ExprPtr ExpressionParser::condition() {
  ExprPtr out = either();
  while (tokens_.take_name("if")) {
    ExprPtr test = either();
    out = make(Kind::kCondition, std::move(out), std::move(test));
    add(*out, tokens_.take_name("else") ? whole() : nullptr);
  }
  return out;
}

ExprPtr ExpressionParser::either() {
  ExprPtr out = both();
  if (!tokens_.is_name("or")) return out;
  out = make(Kind::kOr, std::move(out));
  while (tokens_.take_name("or")) add(*out, both());
  return out;
}

ExprPtr ExpressionParser::both() {
  ExprPtr out = negation();
  if (!tokens_.is_name("and")) return out;
  out = make(Kind::kAnd, std::move(out));
  while (tokens_.take_name("and")) add(*out, negation());
  return out;
}

ExprPtr ExpressionParser::negation() {
  if (!tokens_.take_name("not")) return comparison();
  const Level level(depth_, tokens_);
  ExprPtr out = make(Kind::kUnary, negation());
  out->text = "not";
  return out;
}

ExprPtr ExpressionParser::comparison() {
  constexpr std::array<std::string_view, 6> kOperators{"==", "!=", "<", "<=", ">", ">="};
  ExprPtr out = sum();
  const auto next_operator = [&]() -> std::string {
    for (const std::string_view op : kOperators) {
      if (tokens_.take(op)) return std::string(op);
    }
    if (tokens_.take_name("in")) return "in";
    const Token& second = tokens_.peek_second();
    if (!tokens_.is_name("not") || second.type != Type::kName || second.text != "in") return {};
    tokens_.next();
    tokens_.next();
    return "not in";
  };
  for (std::string op = next_operator(); !op.empty(); op = next_operator()) {
    if (out->kind != Kind::kCompare || out->operators.empty() || out->text == "done") {
      out = make(Kind::kCompare, std::move(out));
    }
    out->operators.push_back(op);
    add(*out, sum());
  }
  // A comparison in parentheses does not continue a chain: "(a < b) < c".
  if (out->kind == Kind::kCompare) out->text = "done";
  return out;
}

ExprPtr ExpressionParser::sum() {
  ExprPtr out = concatenation();
  while (tokens_.is("+") || tokens_.is("-")) {
    const std::string op = tokens_.next().text;
    out = make(Kind::kBinary, std::move(out), concatenation());
    out->text = op;
  }
  return out;
}

ExprPtr ExpressionParser::concatenation() {
  ExprPtr out = product();
  if (!tokens_.is("~")) return out;
  out = make(Kind::kConcatenate, std::move(out));
  while (tokens_.take("~")) add(*out, product());
  return out;
}

ExprPtr ExpressionParser::product() {
  ExprPtr out = power();
  while (tokens_.is("*") || tokens_.is("/") || tokens_.is("//") || tokens_.is("%")) {
    const std::string op = tokens_.next().text;
    out = make(Kind::kBinary, std::move(out), power());
    out->text = op;
  }
  return out;
}

ExprPtr ExpressionParser::power() {
  ExprPtr out = unary();
  while (tokens_.take("**")) {
    out = make(Kind::kBinary, std::move(out), unary());
    out->text = "**";
  }
  return out;
}

ExprPtr ExpressionParser::unary(bool with_filters) {
  ExprPtr out;
  if (tokens_.is("-") || tokens_.is("+")) {
    const Level level(depth_, tokens_);
    const std::string op = tokens_.next().text;
    out = make(Kind::kUnary, unary(/*with_filters=*/false));
    out->text = op;
  } else {
    out = primary();
  }
  out = postfix(std::move(out));
  return with_filters ? filters_and_tests(std::move(out)) : std::move(out);
}

ExprPtr ExpressionParser::primary() {
  const Token& token = tokens_.peek();
  ExprPtr out = make(Kind::kConstant);
  if (token.type == Type::kName) {
    const std::string& name = token.text;
    if (name == "true" || name == "True" || name == "false" || name == "False") {
      out->value = Value(name == "true" || name == "True");
    } else if (name == "none" || name == "None") {
      out->value = Value(nullptr);
    } else {
      out->kind = Kind::kName;
      out->text = name;
      out->name = number_of(name);
    }
    tokens_.next();
  } else if (token.type == Type::kString) {
    std::string text;
    while (tokens_.peek().type == Type::kString) text += tokens_.next().text;
    out->value = Value::text(std::move(text));
  } else if (token.type == Type::kInt) {
    const auto value = parse_integer(token.text, 10);
    if (!value) tokens_.refuse("an integer has too many digits");
    out->value = Value(*value);
    tokens_.next();
  } else if (token.type == Type::kFloat) {
    const auto value = parse_float(token.text);
    if (!value) tokens_.refuse("a number is too large");
    out->value = Value(*value);
    tokens_.next();
  } else {
    return bracketed();
  }
  return out;
}

ExprPtr ExpressionParser::bracketed() {
  const Level level(depth_, tokens_);
  if (tokens_.take("(")) {
    if (tokens_.take(")")) return make(Kind::kTuple);
    ExprPtr out = tuple();
    tokens_.expect_operator(")");
    return out;
  }
  if (tokens_.take("[")) {
    ExprPtr out = make(Kind::kList);
    while (!tokens_.take("]")) {
      if (!out->children.empty()) tokens_.expect_operator(",");
      if (tokens_.take("]")) break;
      add(*out, whole());
    }
    return out;
  }
  if (tokens_.take("{")) return dict();
  tokens_.refuse("expected a value");
}

ExprPtr ExpressionParser::dict() {
  ExprPtr out = make(Kind::kDict);
  while (!tokens_.take("}")) {
    if (!out->children.empty()) tokens_.expect_operator(",");
    if (tokens_.take("}")) break;
    add(*out, whole());
    tokens_.expect_operator(":");
    add(*out, whole());
  }
  return out;
}

ExprPtr ExpressionParser::one_postfix(ExprPtr subject) {
  if (tokens_.take(".")) {
    const Token& token = tokens_.next();
    ExprPtr out = make(Kind::kAttribute, std::move(subject));
    out->text = token.text;
    if (token.type == Type::kName) return out;
    const auto index = token.type == Type::kInt ? parse_integer(token.text, 10) : std::nullopt;
    if (!index) tokens_.refuse("expected a name after '.'");
    out->kind = Kind::kItem;
    ExprPtr number = make(Kind::kConstant);
    number->value = Value(*index);
    add(*out, std::move(number));
    return out;
  }
  if (tokens_.take("[")) return subscript(std::move(subject));
  ExprPtr out = make(Kind::kCall, std::move(subject));
  arguments(*out);
  return out;
}

ExprPtr ExpressionParser::postfix(ExprPtr subject) {
  while (tokens_.is(".") || tokens_.is("[") || tokens_.is("(")) {
    subject = one_postfix(std::move(subject));
  }
  return subject;
}

ExprPtr ExpressionParser::subscript(ExprPtr subject) {
  ExprPtr out = make(Kind::kSlice, std::move(subject));
  ExprPtr parts[3];
  size_t part = 0;
  bool is_slice = false;
  while (!tokens_.take("]")) {
    if (tokens_.take(":")) {
      is_slice = true;
      if (++part > 2) tokens_.refuse("a slice has more than three parts");
    } else if (parts[part]) {
      tokens_.refuse("expected ']'");
    } else {
      parts[part] = whole();
    }
  }
  if (!is_slice) {
    if (!parts[0]) tokens_.refuse("expected an index before ']'");
    out->kind = Kind::kItem;
    add(*out, std::move(parts[0]));
    return out;
  }
  for (ExprPtr& one : parts) add(*out, std::move(one));
  return out;
}

void ExpressionParser::arguments(Expr& call) {
  tokens_.expect_operator("(");
  bool first = true;
  while (!tokens_.take(")")) {
    if (!first) tokens_.expect_operator(",");
    first = false;
    if (tokens_.take(")")) break;
    const Token& second = tokens_.peek_second();
    if (tokens_.is("*") || tokens_.is("**")) {
      const std::string op = tokens_.next().text;
      add(call, make(Kind::kSpread, whole()));
      call.children.back()->text = op;
    } else if (tokens_.peek().type == Type::kName && second.type == Type::kOperator &&
               second.text == "=") {
      std::string name = tokens_.next().text;
      tokens_.next();
      ExprPtr value = whole();
      call.height = std::max(call.height, value->height + 1);
      call.named.emplace_back(std::move(name), std::move(value));
    } else {
      if (!call.named.empty()) tokens_.refuse("a value follows a named argument");
      add(call, whole());
    }
  }
}

ExprPtr ExpressionParser::filters_and_tests(ExprPtr subject) {
  while (true) {
    if (tokens_.take("|")) {
      subject = one_filter(std::move(subject));
    } else if (tokens_.take_name("is")) {
      subject = test(std::move(subject));
    } else if (tokens_.is("(")) {
      subject = one_postfix(std::move(subject));
    } else {
      break;
    }
  }
  return subject;
}

/// A name that may have dots, as in Jinja: "a is b.c" asks for the test "b.c".
std::string ExpressionParser::dotted_name(const char* what) {
  std::string name = tokens_.name(what);
  while (tokens_.take(".")) name += "." + tokens_.name(what);
  return name;
}

ExprPtr ExpressionParser::one_filter(ExprPtr subject) {
  ExprPtr out = make(Kind::kFilter);
  add(*out, std::move(subject));
  out->text = dotted_name("the name of a filter");
  if (tokens_.is("(")) arguments(*out);
  return out;
}

ExprPtr ExpressionParser::filters(ExprPtr subject, bool starts_inside) {
  if (starts_inside) subject = one_filter(std::move(subject));
  while (tokens_.take("|")) {
    subject = one_filter(std::move(subject));
  }
  return subject;
}

ExprPtr ExpressionParser::test(ExprPtr subject) {
  const bool is_negated = tokens_.take_name("not");
  ExprPtr out = make(Kind::kTest, std::move(subject));
  out->text = dotted_name("the name of a test");
  const Token& token = tokens_.peek();
  const bool is_word = token.type == Type::kName && token.text != "else" && token.text != "or" &&
                       token.text != "and" && token.text != "is" && token.text != "if" &&
                       token.text != "in" && token.text != "not";
  if (tokens_.is("(")) {
    arguments(*out);
  } else if (is_word || token.type == Type::kString || token.type == Type::kInt ||
             token.type == Type::kFloat || tokens_.is("[") || tokens_.is("{")) {
    add(*out, postfix(primary()));
  }
  if (!is_negated) return out;
  out = make(Kind::kUnary, std::move(out));
  out->text = "not";
  return out;
}

}  // namespace cleave::inline chat::jinja
