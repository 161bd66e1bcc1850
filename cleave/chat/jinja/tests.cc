// The tests after `is`.
#include <algorithm>
#include <array>
#include <utility>

#include "cleave/chat/jinja/interpreter.h"
#include "cleave/chat/jinja/string_ops.h"

namespace cleave::inline chat::jinja {
namespace {

/// A test with its subject and its first argument.
struct Question {
  Interpreter& run;
  const Value& subject;
  const Arguments& arguments;

  [[nodiscard]] Value argument() const {
    if (arguments.values.empty()) fail("a test lacks its argument");
    return arguments.values[0];
  }
  [[nodiscard]] bool equals() const { return equal(subject, argument(), run.budget()); }
  [[nodiscard]] bool is_less() const { return less(subject, argument(), run.budget()); }
  [[nodiscard]] bool is_more() const { return less(argument(), subject, run.budget()); }
  [[nodiscard]] bool is_divisible(const Value& by) const {
    return !operate(run, "%", subject, by).truth();
  }
};

bool is_callable(const Question& q) {
  return q.subject.is<MethodPtr>() ||
         (q.subject.is<Object*>() && q.subject.as<Object*>()->is_callable());
}

/// Whether iter() takes it, as it does an undefined value.
bool is_iterable(const Question& q) {
  return q.subject.is_text() || q.subject.is_list() || q.subject.is_dict() ||
         q.subject.is_undefined();
}

bool is_in(const Question& q) {
  const Value container = q.argument();
  if (container.is_text() && q.subject.is_text()) {
    q.run.budget().search(container.string().size(), q.subject.string().size());
    return container.string().find(q.subject.string()) != std::string::npos;
  }
  const std::vector<Value> all = q.run.elements(container);
  return std::any_of(all.begin(), all.end(),
                     [&](const Value& one) { return equal(one, q.subject, q.run.budget()); });
}

/// "is lower" and "is upper": the text has letters, and all of them have this case.
template <std::string (*convert)(std::string_view), std::string (*other)(std::string_view)>
bool has_case(const Question& q) {
  const std::string text = to_text(q.subject, q.run.budget());
  q.run.budget().step(1 + text.size() / 16);
  return convert(text) == text && other(text) != text;
}

bool is_whole(const Value& value) {
  return value.is<int64_t>() || value.is<LongInt>();
}

using Body = bool (*)(const Question&);
using Entry = std::pair<std::string_view, Body>;

bool is_bool(const Question& q, bool value) {
  return q.subject.is<bool>() && q.subject.as<bool>() == value;
}

constexpr std::array kTests{
    Entry{"!=", [](const Question& q) { return !q.equals(); }},
    Entry{"<", [](const Question& q) { return q.is_less(); }},
    Entry{"<=", [](const Question& q) { return !q.is_more(); }},
    Entry{"==", [](const Question& q) { return q.equals(); }},
    Entry{">", [](const Question& q) { return q.is_more(); }},
    Entry{">=", [](const Question& q) { return !q.is_less(); }},
    Entry{"boolean", [](const Question& q) { return q.subject.is<bool>(); }},
    Entry{"callable", is_callable},
    Entry{"defined", [](const Question& q) { return !q.subject.is_undefined(); }},
    Entry{"divisibleby", [](const Question& q) { return q.is_divisible(q.argument()); }},
    Entry{"eq", [](const Question& q) { return q.equals(); }},
    Entry{"equalto", [](const Question& q) { return q.equals(); }},
    Entry{"even", [](const Question& q) { return q.is_divisible(Value(int64_t{2})); }},
    Entry{"false", [](const Question& q) { return is_bool(q, false); }},
    Entry{"float", [](const Question& q) { return q.subject.is<double>(); }},
    Entry{"ge", [](const Question& q) { return !q.is_less(); }},
    Entry{"greaterthan", [](const Question& q) { return q.is_more(); }},
    Entry{"gt", [](const Question& q) { return q.is_more(); }},
    Entry{"in", is_in},
    Entry{"integer", [](const Question& q) { return is_whole(q.subject); }},
    Entry{"iterable", is_iterable},
    Entry{"le", [](const Question& q) { return !q.is_more(); }},
    Entry{"lessthan", [](const Question& q) { return q.is_less(); }},
    Entry{"lower", has_case<lower, upper>},
    Entry{"lt", [](const Question& q) { return q.is_less(); }},
    Entry{"mapping", [](const Question& q) { return q.subject.is_dict(); }},
    Entry{"ne", [](const Question& q) { return !q.equals(); }},
    Entry{"none", [](const Question& q) { return q.subject.is_none(); }},
    Entry{"number", [](const Question& q) { return q.subject.is_number() || is_whole(q.subject); }},
    Entry{"odd", [](const Question& q) { return !q.is_divisible(Value(int64_t{2})); }},
    Entry{"sameas", [](const Question& q) { return q.equals(); }},
    Entry{"sequence", is_iterable},
    Entry{"string", [](const Question& q) { return q.subject.is_text(); }},
    Entry{"true", [](const Question& q) { return is_bool(q, true); }},
    Entry{"undefined", [](const Question& q) { return q.subject.is_undefined(); }},
    Entry{"upper", has_case<upper, lower>},
};

}  // namespace

bool Interpreter::test(const std::string& name, const Value& subject, Arguments& arguments) {
  const auto* found = std::find_if(kTests.begin(), kTests.end(),
                                   [&](const Entry& entry) { return entry.first == name; });
  if (found == kTests.end()) fail(str("there is no test '", name, "'"));
  return found->second({*this, subject, arguments});
}

}  // namespace cleave::inline chat::jinja
