// The functions of the language, and the attributes of objects.
#include <algorithm>
#include <ctime>
#include <iomanip>

#include "cleave/chat/jinja/interpreter.h"

namespace cleave::inline chat::jinja {
namespace {

/// Counts that `name` is compared with the names of so many members.
void charge_scan(Budget& budget, size_t num_members, const std::string& name) {
  budget.step(num_members * (1 + name.size() / 64) / 16);
}

/// joiner(): nothing the first time, then the separator.
class Joiner final : public Object {
 public:
  explicit Joiner(Value separator) : separator_(std::move(separator)) {}
  Value call(Interpreter& /*run*/, Arguments& /*arguments*/) override {
    return std::exchange(is_used_, true) ? separator_ : Value::text("");
  }
  [[nodiscard]] bool is_callable() const override { return true; }

 private:
  Value separator_;
  bool is_used_ = false;
};

Value range_function(Interpreter& run, Arguments& arguments) {
  int64_t parts[3] = {0, 0, 1};
  const auto& values = arguments.values;
  if (values.empty() || values.size() > 3) fail("range() takes one to three integers");
  for (size_t i = 0; i < values.size(); ++i) {
    if (!values[i].is_integral()) fail("range() takes integers");
    parts[values.size() == 1 ? 1 : i] = values[i].integer();
  }
  const auto [first, last, step] = parts;
  if (step == 0) fail("the step of range() is 0");
  std::vector<Value> out;
  for (int64_t i = first; step > 0 ? i < last : i > last;) {
    run.budget().bytes(sizeof(Value));
    out.push_back(Value(i));
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return run.list(std::move(out));
}

Value namespace_function(Interpreter& run, Arguments& arguments) {
  auto* made = run.make<Namespace>();
  for (const Value& value : arguments.values) {
    if (!value.is_dict()) fail("namespace() takes named values or a dict");
    for (const auto& [key, member] : value.members()) {
      if (key.is_text()) made->set(key.string(), member, run.budget());
    }
  }
  for (const auto& [name, value] : arguments.named) made->set(name, value, run.budget());
  return made;
}

Value dict_function(Interpreter& run, Arguments& arguments) {
  std::vector<std::pair<Value, Value>> members;
  if (!arguments.values.empty()) {
    if (!arguments.values[0].is_dict()) fail("dict() takes named values or a dict");
    members = arguments.values[0].members();
  }
  for (const auto& [name, value] : arguments.named) {
    charge_scan(run.budget(), members.size(), name);
    const auto known =
        std::find_if(members.begin(), members.end(), [&name = name](const auto& one) {
          return one.first.is_text() && one.first.string() == name;
        });
    if (known != members.end()) {
      known->second = value;
    } else {
      members.emplace_back(run.text(name), value);
    }
  }
  run.budget().bytes(members.size() * 2 * sizeof(Value));
  return Value::dict(std::move(members));
}

Value raise_exception(Interpreter& run, Arguments& arguments) {
  fail(str("the template refuses the messages: ",
           to_text(arguments.get(0, "message", {}), run.budget())));
}

Value strftime_now(Interpreter& run, Arguments& arguments) {
  const Value format = arguments.get(0, "format", {});
  if (!format.is_text()) fail("strftime_now() takes a format");
  constexpr size_t kMaxFormat = 256;
  if (format.string().size() > kMaxFormat) fail("the format of strftime_now() is too long");
  const std::time_t now = run.options().now;
  std::tm local{};
  localtime_r(&now, &local);
  TextStream out;
  out << std::put_time(&local, format.string().c_str());
  return run.text(std::move(out).str());
}

Value joiner_function(Interpreter& run, Arguments& arguments) {
  return run.make<Joiner>(arguments.get(0, "sep", Value::text(", ")));
}

}  // namespace

Value Object::attribute(Interpreter& /*run*/, const std::string& name) {
  return Undefined{str("an object has no attribute '", name, "'")};
}

Value Object::call(Interpreter& /*run*/, Arguments& /*arguments*/) {
  fail("the object cannot be called");
}

Value Namespace::attribute(Interpreter& run, const std::string& name) {
  charge_scan(run.budget(), values_.size(), name);
  for (const auto& [known, value] : values_) {
    if (known == name) return value;
  }
  return Undefined{str("the namespace has no attribute '", name, "'")};
}

void Namespace::set(const std::string& name, Value value, Budget& budget) {
  charge_scan(budget, values_.size(), name);
  for (auto& [known, old] : values_) {
    if (known == name) {
      old = std::move(value);
      return;
    }
  }
  budget.bytes(name.size() + sizeof(values_.front()));
  values_.emplace_back(name, std::move(value));
}

Function::Body find_function(std::string_view name) {
  if (name == "range") return range_function;
  if (name == "namespace") return namespace_function;
  if (name == "dict") return dict_function;
  if (name == "raise_exception") return raise_exception;
  if (name == "strftime_now") return strftime_now;
  return name == "joiner" ? joiner_function : nullptr;
}

}  // namespace cleave::inline chat::jinja
