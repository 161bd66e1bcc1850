// Expressions.
#include <algorithm>
#include <cmath>

#include "cleave/chat/jinja/interpreter.h"
#include "cleave/chat/jinja/string_ops.h"

namespace cleave::inline chat::jinja {
namespace {

/// A bound of a slice within a sequence of `size` elements, as Python clamps it.
int64_t clamped_bound(const Value& part, int64_t fallback, int64_t size, bool is_reversed) {
  if (part.is_none()) return fallback;
  int64_t at = part.integer();
  if (at < 0) at = at < -size ? -1 - size : at;
  if (at < 0) at += size;
  return std::clamp<int64_t>(at, is_reversed ? -1 : 0, is_reversed ? size - 1 : size);
}

/// The positions of a Python slice of a sequence with `size` elements.
std::vector<size_t> slice_positions(int64_t size, const Value& first, const Value& last,
                                    const Value& by) {
  for (const Value* one : {&first, &last, &by}) {
    if (!one->is_integral() && !one->is_none()) fail("the parts of a slice must be integers");
  }
  const int64_t step = by.is_none() ? 1 : by.integer();
  if (step == 0) fail("the step of a slice is 0");
  const bool is_reversed = step < 0;
  const int64_t begin = clamped_bound(first, is_reversed ? size - 1 : 0, size, is_reversed);
  const int64_t end = clamped_bound(last, is_reversed ? -1 : size, size, is_reversed);
  std::vector<size_t> out;
  for (int64_t at = begin; step > 0 ? at < end : at > end;) {
    out.push_back(static_cast<size_t>(at));
    if (step > size || step < -size) break;  // at + step might overflow
    at += step;
  }
  return out;
}

/// `value` by reference: it is written while the arguments are evaluated.
int64_t checked(bool overflows, const int64_t& value) {
  if (overflows) fail("an integer has more than 64 bits");
  return value;
}

int64_t floor_divide(int64_t a, int64_t b) {
  if (b == 0) fail("division by zero");
  if (b == -1) {
    int64_t negative = 0;
    return checked(__builtin_sub_overflow(int64_t{0}, a, &negative), negative);
  }
  const int64_t quotient = a / b;
  return quotient - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
}

int64_t int_power(int64_t base, int64_t exponent) {
  int64_t out = 1;
  if (base == 0 || base == 1 || base == -1) {
    return exponent == 0 || base == 1 ? 1 : base == 0 ? 0 : exponent % 2 == 0 ? 1 : -1;
  }
  for (int64_t i = 0; i < exponent; ++i) {
    int64_t next = 0;
    out = checked(__builtin_mul_overflow(out, base, &next), next);
  }
  return out;
}

Value operate_integers(char op, int64_t a, int64_t b) {
  int64_t out = 0;
  if (op == '+') return Value(checked(__builtin_add_overflow(a, b, &out), out));
  if (op == '-') return Value(checked(__builtin_sub_overflow(a, b, &out), out));
  if (op == '*') return Value(checked(__builtin_mul_overflow(a, b, &out), out));
  if (op == 'f') return Value(floor_divide(a, b));
  if (op == 'p' && b >= 0) return Value(int_power(a, b));
  if (op == 'p') return Value(std::pow(static_cast<double>(a), static_cast<double>(b)));
  return Value(b == -1 ? 0 : a - floor_divide(a, b) * b);
}

Value operate_floats(char op, double a, double b) {
  if (op == '+') return Value(a + b);
  if (op == '-') return Value(a - b);
  if (op == '*') return Value(a * b);
  if (op == 'p') return Value(std::pow(a, b));
  if (b == 0) fail("division by zero");
  if (op == '/') return Value(a / b);
  if (op == 'f') return Value(std::floor(a / b));
  const double rest = std::fmod(a, b);
  return Value(rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest);
}

/// `value` repeated `count` times.
Value repeated(Interpreter& run, const Value& value, int64_t count) {
  const auto times = static_cast<uint64_t>(std::max<int64_t>(count, 0));
  const uint64_t each =
      value.is_text() ? value.string().size() : value.items().size() * sizeof(Value);
  if (each > 0) {
    if (times > (uint64_t{1} << 40) / each) fail("the template needs too much memory");
    run.budget().bytes(times * each);
  }
  if (value.is_text()) {
    std::string out;
    for (uint64_t i = 0; i < times && each > 0; ++i) out += value.string();
    return Value::text(std::move(out));
  }
  std::vector<Value> out;
  for (uint64_t i = 0; i < times && each > 0; ++i) {
    out.insert(out.end(), value.items().begin(), value.items().end());
  }
  return Value::list(std::move(out));
}

[[noreturn]] void refuse_types(const std::string& op, const Value& a, const Value& b) {
  for (const Value* one : {&a, &b}) {
    if (one->is_undefined()) fail(one->as<Undefined>().what);
  }
  fail(str("'", op, "' does not take values of types ", a.type_name(), " and ", b.type_name()));
}

/// a + b of two texts, two lists or two tuples; nullopt for others.
std::optional<Value> joined(Interpreter& run, const Value& a, const Value& b) {
  if (a.is_text() && b.is_text()) return run.text(a.string() + b.string());
  if (!a.is_list() || !b.is_list() || a.type_name() != b.type_name()) return std::nullopt;
  std::vector<Value> out = a.items();
  out.insert(out.end(), b.items().begin(), b.items().end());
  return run.list(std::move(out), a.as<ListPtr>()->is_tuple);
}

/// A text or list times an integer, in either order; nullopt for others.
std::optional<Value> multiplied(Interpreter& run, const Value& a, const Value& b) {
  if ((a.is_text() || a.is_list()) && b.is_integral()) return repeated(run, a, b.integer());
  if ((b.is_text() || b.is_list()) && a.is_integral()) return repeated(run, b, a.integer());
  return std::nullopt;
}

}  // namespace

Value operate(Interpreter& run, const std::string& op, const Value& a, const Value& b) {
  const char code = op == "//" ? 'f' : op == "**" ? 'p' : op[0];
  if (a.is_number() && b.is_number()) {
    if (a.is_integral() && b.is_integral() && code != '/') {
      return operate_integers(code, a.integer(), b.integer());
    }
    return operate_floats(code, a.number(), b.number());
  }
  std::optional<Value> out;
  if (code == '+') out = joined(run, a, b);
  if (code == '*') out = multiplied(run, a, b);
  if (out) return std::move(*out);
  if (code == '%' && a.is_text()) {
    Arguments arguments;
    arguments.values = b.is_list() ? b.items() : std::vector<Value>{b};
    return run.filter("format", a, arguments);
  }
  refuse_types(op, a, b);
}

Value Interpreter::text(std::string text) {
  budget_.bytes(text.size() + sizeof(std::string));
  return Value::text(std::move(text));
}

Value Interpreter::list(std::vector<Value> items, bool is_tuple) {
  budget_.bytes(items.size() * sizeof(Value) + sizeof(List));
  return Value::list(std::move(items), is_tuple);
}

Value Interpreter::evaluate(const Expr& expr) {
  budget_.step();
  const Nested nested(depth_);
  return evaluate_node(expr);
}

std::vector<Value> Interpreter::all(const std::vector<ExprPtr>& children) {
  std::vector<Value> out;
  out.reserve(children.size());
  for (const ExprPtr& child : children) out.push_back(evaluate(*child));
  return out;
}

Value Interpreter::evaluate_node(const Expr& expr) {
  switch (expr.kind) {
    case Expr::Kind::kConstant:
      return expr.value;
    case Expr::Kind::kName:
      return variable(expr);
    case Expr::Kind::kTuple:
    case Expr::Kind::kList:
      return list(all(expr.children), expr.kind == Expr::Kind::kTuple);
    case Expr::Kind::kDict:
      return dict(expr);
    case Expr::Kind::kAttribute:
      return attribute(evaluate(*expr.children[0]), expr.text);
    case Expr::Kind::kItem: {
      const Value subject = evaluate(*expr.children[0]);
      return item(subject, evaluate(*expr.children[1]));
    }
    case Expr::Kind::kSlice:
      return slice(expr);
    case Expr::Kind::kCall:
      return call(expr);
    case Expr::Kind::kFilter:
    case Expr::Kind::kTest: {
      const Value subject = evaluate(*expr.children[0]);
      Arguments given = arguments(expr);
      return expr.kind == Expr::Kind::kFilter ? filter(expr.text, subject, given)
                                              : Value(test(expr.text, subject, given));
    }
    case Expr::Kind::kUnary:
      return unary(expr);
    case Expr::Kind::kBinary:
      return binary(expr);
    case Expr::Kind::kAnd:
    case Expr::Kind::kOr: {
      Value value;
      for (const ExprPtr& child : expr.children) {
        value = evaluate(*child);
        if (value.truth() == (expr.kind == Expr::Kind::kOr)) break;
      }
      return value;
    }
    case Expr::Kind::kCompare:
      return compare(expr);
    case Expr::Kind::kConcatenate:
      return concatenate(expr);
    case Expr::Kind::kCondition:
      return condition(expr);
    case Expr::Kind::kSpread:
      break;
  }
  fail("'*' is only allowed in arguments");
}

Value Interpreter::variable(const Expr& expr) {
  if (const Value* value = find_variable(expr.name)) return *value;
  Function*& function = functions_[static_cast<size_t>(expr.name)];
  if (function == nullptr) {
    const Function::Body body = find_function(expr.text);
    if (body == nullptr) return Undefined{str("'", expr.text, "' is undefined")};
    function = make<Function>(body);
  }
  return function;
}

Value Interpreter::condition(const Expr& expr) {
  if (evaluate(*expr.children[1]).truth()) return evaluate(*expr.children[0]);
  if (expr.children[2]) return evaluate(*expr.children[2]);
  return Undefined{"an inline if without else has no value"};
}

Value Interpreter::concatenate(const Expr& expr) {
  std::string out;
  budget_.bytes(sizeof(std::string));
  for (const ExprPtr& child : expr.children) {
    const std::string part = to_text(evaluate(*child), budget_);
    budget_.bytes(part.size());
    out += part;
  }
  return Value::text(std::move(out));
}

Value Interpreter::dict(const Expr& expr) {
  std::vector<std::pair<Value, Value>> members;
  for (size_t i = 0; i < expr.children.size(); i += 2) {
    Value key = evaluate(*expr.children[i]);
    if (!key.is_text() && !key.is_number() && !key.is_none()) {
      fail(str("a value of type ", key.type_name(), " cannot be a key of a dict"));
    }
    Value value = evaluate(*expr.children[i + 1]);
    const auto known = std::find_if(members.begin(), members.end(), [&](const auto& member) {
      return equal(member.first, key, budget_);
    });
    if (known != members.end()) {
      known->second = std::move(value);
    } else {
      members.emplace_back(std::move(key), std::move(value));
    }
  }
  budget_.bytes(members.size() * 2 * sizeof(Value) + sizeof(Dict));
  return Value::dict(std::move(members));
}

Value Interpreter::unary(const Expr& expr) {
  const Value value = evaluate(*expr.children[0]);
  if (expr.text == "not") return Value(!value.truth());
  if (!value.is_number()) refuse_types(expr.text, value, value);
  if (expr.text == "+") return value.is<bool>() ? Value(value.integer()) : value;
  if (value.is<double>()) return Value(-value.as<double>());
  return operate_integers('-', 0, value.integer());
}

Value Interpreter::binary(const Expr& expr) {
  const Value a = evaluate(*expr.children[0]);
  return operate(*this, expr.text, a, evaluate(*expr.children[1]));
}

Value Interpreter::compare(const Expr& expr) {
  Value left = evaluate(*expr.children[0]);
  for (size_t i = 0; i < expr.operators.size(); ++i) {
    const std::string& op = expr.operators[i];
    Value right = evaluate(*expr.children[i + 1]);
    bool holds = false;
    if (op == "==" || op == "!=") {
      holds = equal(left, right, budget_) == (op == "==");
    } else if (op == "in" || op == "not in") {
      holds = contains(right, left) == (op == "in");
    } else if (op == "<" || op == ">=") {
      holds = less(left, right, budget_) == (op == "<");
    } else {
      holds = less(right, left, budget_) == (op == ">");
    }
    if (!holds) return Value(false);
    left = std::move(right);
  }
  return Value(true);
}

bool Interpreter::contains(const Value& container, const Value& value) {
  if (container.is_undefined()) return false;
  if (container.is_text()) {
    if (value.is_undefined()) fail(value.as<Undefined>().what);
    if (!value.is_text()) fail("only a string can be 'in' a string");
    budget_.search(container.string().size(), value.string().size());
    return container.string().find(value.string()) != std::string::npos;
  }
  if (container.is_dict()) return find_member(container, value, budget_) != nullptr;
  if (!container.is_list()) fail(str("'in' does not take a value of type ", container.type_name()));
  return std::any_of(container.items().begin(), container.items().end(),
                     [&](const Value& one) { return equal(one, value, budget_); });
}

Value Interpreter::slice(const Expr& expr) {
  const Value subject = evaluate(*expr.children[0]);
  Value parts[3] = {Value(nullptr), Value(nullptr), Value(nullptr)};
  for (size_t i = 0; i < 3; ++i) {
    if (expr.children[i + 1]) parts[i] = evaluate(*expr.children[i + 1]);
  }
  if (subject.is_undefined()) fail(subject.as<Undefined>().what);
  if (subject.is_list()) {
    const auto& items = subject.items();
    std::vector<Value> out;
    for (const size_t at :
         slice_positions(static_cast<int64_t>(items.size()), parts[0], parts[1], parts[2])) {
      out.push_back(items[at]);
    }
    return list(std::move(out), subject.as<ListPtr>()->is_tuple);
  }
  if (!subject.is_text()) fail(str("a value of type ", subject.type_name(), " has no slices"));
  budget_.bytes(subject.string().size() * sizeof(std::string_view));
  const std::vector<std::string_view> all = characters(subject.string());
  std::string out;
  for (const size_t at :
       slice_positions(static_cast<int64_t>(all.size()), parts[0], parts[1], parts[2])) {
    out += all[at];
  }
  return text(std::move(out));
}

std::vector<Value> Interpreter::elements(const Value& value) {
  std::vector<Value> out;
  if (value.is_list()) {
    out = value.items();
  } else if (value.is_dict()) {
    for (const auto& [key, member] : value.members()) out.push_back(key);
  } else if (value.is_text()) {
    budget_.bytes(value.string().size() *
                  (sizeof(std::string_view) + sizeof(Value) + sizeof(std::string)));
    for (const std::string_view one : characters(value.string())) {
      out.push_back(Value::text(std::string(one)));
    }
  } else if (!value.is_undefined()) {
    fail(str("a value of type ", value.type_name(), " has no elements"));
  }
  budget_.step(1 + out.size() / 4);
  return out;
}

Value Interpreter::attribute(const Value& subject, const std::string& name) {
  budget_.step(name.size() / 64);
  if (subject.is_undefined()) fail(subject.as<Undefined>().what);
  if (subject.is<Object*>()) return subject.as<Object*>()->attribute(*this, name);
  if (has_method(subject, name)) {
    budget_.bytes(sizeof(Method));
    return {std::make_shared<const Method>(Method{subject, name})};
  }
  if (subject.is_dict()) {
    if (const Value* member = find_member(subject, Value::text(name), budget_)) return *member;
  }
  return Undefined{str("a value of type ", subject.type_name(), " has no attribute '", name, "'")};
}

std::optional<Value> Interpreter::element(const Value& subject, int64_t index) {
  const bool is_list = subject.is_list();
  if (!is_list && !subject.is_text()) return std::nullopt;
  if (!is_list) budget_.step(1 + subject.string().size() / 16);
  const auto size =
      is_list ? static_cast<int64_t>(subject.items().size()) : num_characters(subject.string());
  const int64_t at = index < 0 ? index + size : index;
  if (at < 0 || at >= size) return std::nullopt;
  if (is_list) return subject.items()[static_cast<size_t>(at)];
  return text(std::string(character_at(subject.string(), at)));
}

Value Interpreter::item(const Value& subject, const Value& key) {
  if (subject.is_undefined()) fail(subject.as<Undefined>().what);
  if (subject.is_dict()) {
    if (const Value* member = find_member(subject, key, budget_)) return *member;
  }
  if (key.is_text()) return attribute(subject, key.string());
  if (key.is_integral()) {
    if (auto found = element(subject, key.integer())) return std::move(*found);
  }
  return Undefined{str("a value of type ", subject.type_name(), " has no element ",
                       key.is_integral() ? std::to_string(key.integer()) : "of that key")};
}

Arguments Interpreter::arguments(const Expr& expr) {
  Arguments out;
  for (size_t i = 1; i < expr.children.size(); ++i) {
    const Expr& child = *expr.children[i];
    if (child.kind != Expr::Kind::kSpread) {
      out.values.push_back(evaluate(child));
      continue;
    }
    const Value value = evaluate(*child.children[0]);
    if (child.text == "*") {
      std::vector<Value> all = elements(value);
      budget_.bytes(all.size() * sizeof(Value));
      for (Value& one : all) out.values.push_back(std::move(one));
    } else {
      if (!value.is_dict()) fail("'**' expects a dict");
      for (const auto& [key, member] : value.members()) {
        if (!key.is_text()) fail("'**' expects a dict whose keys are strings");
        budget_.bytes(key.string().size() + sizeof(std::pair<std::string, Value>));
        out.named.emplace_back(key.string(), member);
      }
    }
  }
  for (const auto& [name, value] : expr.named) out.named.emplace_back(name, evaluate(*value));
  return out;
}

Value Interpreter::call(const Expr& expr) {
  const Value callee = evaluate(*expr.children[0]);
  Arguments given = arguments(expr);
  line_ = expr.line;
  return call(callee, given);
}

Value Interpreter::call(const Value& callee, Arguments& arguments) {
  if (callee.is<MethodPtr>()) return call_method(*this, *callee.as<MethodPtr>(), arguments);
  if (callee.is<Object*>()) return callee.as<Object*>()->call(*this, arguments);
  if (callee.is_undefined()) fail(callee.as<Undefined>().what);
  fail(str("a value of type ", callee.type_name(), " cannot be called"));
}

}  // namespace cleave::inline chat::jinja
