// Statements. Expressions are in evaluate.cc.
#include "cleave/chat/jinja/interpreter.h"

#include <algorithm>

namespace cleave::inline chat::jinja {
namespace {

/// A macro, or the body of a {% call %}.
class Macro final : public Object {
 public:
  Macro(const Stmt& stmt, Scope* defined_in) : stmt_(stmt), defined_in_(defined_in) {}
  Value call(Interpreter& run, Arguments& arguments) override {
    return run.run_macro(stmt_, defined_in_, arguments);
  }
  Value attribute(Interpreter& run, const std::string& name) override {
    return name == "name" ? run.text(stmt_.text) : Value(Undefined{str("a macro has no ", name)});
  }
  [[nodiscard]] bool is_callable() const override { return true; }

 private:
  const Stmt& stmt_;
  Scope* defined_in_;
};

/// The variable `loop`.
class Loop final : public Object {
 public:
  Loop(const Stmt& stmt, std::vector<Value> items, int depth)
      : stmt_(stmt), items_(std::move(items)), depth_(depth) {}

  Value attribute(Interpreter& run, const std::string& name) override {
    const auto size = static_cast<int64_t>(items_.size());
    if (name == "index") return Value(at_ + 1);
    if (name == "index0") return Value(at_);
    if (name == "revindex") return Value(size - at_);
    if (name == "revindex0") return Value(size - at_ - 1);
    if (name == "first") return Value(at_ == 0);
    if (name == "last") return Value(at_ + 1 == size);
    if (name == "length") return Value(size);
    if (name == "depth") return Value(int64_t{depth_} + 1);
    if (name == "depth0") return Value(int64_t{depth_});
    if (name == "previtem" && at_ > 0 && at_ <= size) return items_[static_cast<size_t>(at_ - 1)];
    if (name == "nextitem" && at_ + 1 < size) return items_[static_cast<size_t>(at_ + 1)];
    if (name == "cycle") return run.make<Cycle>(*this);
    if (name == "changed") return run.make<Changed>(*this);
    return Undefined{str("'loop.", name, "' is undefined")};
  }

  Value call(Interpreter& run, Arguments& arguments) override {
    if (!stmt_.is_recursive) fail("the loop cannot be called; it is not marked 'recursive'");
    return run.run_loop_again(stmt_, arguments.get(0, "iterable", {}), depth_ + 1);
  }

  [[nodiscard]] const std::vector<Value>& items() const { return items_; }
  void move_to(size_t index) { at_ = static_cast<int64_t>(index); }
  /// Frees the items when the loop has ended.
  void end() { items_ = {}; }

 private:
  class Cycle final : public Object {
   public:
    explicit Cycle(const Loop& loop) : loop_(loop) {}
    Value call(Interpreter& /*run*/, Arguments& arguments) override {
      if (arguments.values.empty()) fail("loop.cycle() expects values");
      return arguments.values[static_cast<size_t>(loop_.at_) % arguments.values.size()];
    }

   private:
    const Loop& loop_;
  };
  class Changed final : public Object {
   public:
    explicit Changed(Loop& loop) : loop_(loop) {}
    Value call(Interpreter& run, Arguments& arguments) override {
      const Value now = run.list(arguments.values);
      const bool is_same = loop_.before_.is_list() && equal(now, loop_.before_, run.budget());
      loop_.before_ = now;
      return Value(!is_same);
    }

   private:
    Loop& loop_;
  };

  const Stmt& stmt_;
  std::vector<Value> items_;
  int64_t at_ = 0;
  int depth_;
  Value before_;
};

}  // namespace

/// Variables are set in a new scope while it lives.
class Interpreter::ScopeGuard {
 public:
  ScopeGuard(Interpreter& run, Scope* outer)
      : run_(run), before_(run.scope_), scope_(run.new_scope(outer)) {
    run_.scope_ = scope_;
  }
  ~ScopeGuard() {
    run_.scope_ = before_;
    run_.release(scope_);
  }
  ScopeGuard(const ScopeGuard&) = delete;
  ScopeGuard& operator=(const ScopeGuard&) = delete;

 private:
  Interpreter& run_;
  Scope* before_;
  Scope* scope_;
};

Interpreter::Interpreter(const Syntax& syntax, const RenderOptions& options)
    : syntax_(syntax),
      options_(options),
      budget_(options.max_steps, options.max_bytes),
      functions_(syntax.names.size()),
      loop_name_(number_of("loop")),
      caller_name_(number_of("caller")) {}

/// The number of a name; -1 if the template does not have it.
int Interpreter::number_of(std::string_view name) const {
  const auto found = std::find(syntax_.names.begin(), syntax_.names.end(), name);
  return found == syntax_.names.end() ? -1 : static_cast<int>(found - syntax_.names.begin());
}

Rendered Interpreter::run(const std::vector<std::pair<std::string, Value>>& variables) {
  scope_ = new_scope(nullptr);
  for (const auto& [name, value] : variables) {
    if (const int number = number_of(name); number >= 0) set_variable(number, value);
  }
  out_ = &rendered_.text;
  try {
    execute(syntax_.body);
  } catch (const Error& error) {
    throw Error(error.code(), str("line ", line_, ": ", error.what()));
  }
  return std::move(rendered_);
}

Scope* Interpreter::new_scope(Scope* outer) {
  if (free_scopes_.empty()) {
    budget_.bytes(sizeof(Scope));
    scopes_.push_back(std::make_unique<Scope>());
    free_scopes_.push_back(scopes_.back().get());
  }
  Scope* scope = free_scopes_.back();
  free_scopes_.pop_back();
  scope->outer = outer;
  return scope;
}

void Interpreter::release(Scope* scope) {
  if (scope->is_kept) return;
  scope->values.clear();
  free_scopes_.push_back(scope);
}

/// A macro refers to the scope and all outer ones, so they are not used again.
void Interpreter::keep_scopes() {
  for (Scope* scope = scope_; scope != nullptr && !scope->is_kept; scope = scope->outer) {
    scope->is_kept = true;
  }
}

void Interpreter::set_variable(int name, Value value) {
  budget_.step(scope_->values.size() / 16);
  for (auto& [known, old] : scope_->values) {
    if (known == name) {
      old = std::move(value);
      return;
    }
  }
  scope_->values.emplace_back(name, std::move(value));
}

const Value* Interpreter::find_variable(int name) {
  size_t seen = 0;
  for (const Scope* scope = scope_; scope != nullptr; scope = scope->outer) {
    seen += 1 + scope->values.size();
    if (seen >= 16) {
      budget_.step(seen / 16);
      seen %= 16;
    }
    for (const auto& [known, value] : scope->values) {
      if (known == name) return &value;
    }
  }
  return nullptr;
}

void Interpreter::assign(const Target& target, const Value& value) {
  if (!target.parts.empty()) {
    const std::vector<Value> values = elements(value);
    if (values.size() != target.parts.size()) {
      fail(str(values.size(), " values for ", target.parts.size(), " names"));
    }
    for (size_t i = 0; i < values.size(); ++i) assign(target.parts[i], values[i]);
  } else if (target.attribute.empty()) {
    set_variable(target.name, value);
  } else {
    const Value* subject = find_variable(target.name);
    auto* space = subject != nullptr && subject->is<Object*>()
                      ? dynamic_cast<Namespace*>(subject->as<Object*>())
                      : nullptr;
    if (space == nullptr) {
      fail(str("cannot set '", target.text, '.', target.attribute, "'; '", target.text,
               "' is not a namespace"));
    }
    budget_.bytes(sizeof(Value));
    space->set(target.attribute, value, budget_);
  }
}

void Interpreter::print(const std::string& text) {
  budget_.bytes(text.size());
  *out_ += text;
}

template <class Action>
std::string Interpreter::captured(const Action& action) {
  std::string text;
  std::string* const before = std::exchange(out_, &text);
  try {
    action();
  } catch (...) {
    out_ = before;
    throw;
  }
  out_ = before;
  return text;
}

Interpreter::Flow Interpreter::execute(const Body& body) {
  const Nested nested(depth_);
  for (const Stmt& stmt : body) {
    const Flow flow = execute(stmt);
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::execute(const Stmt& stmt) {
  budget_.step();
  line_ = stmt.line;
  switch (stmt.kind) {
    case Stmt::Kind::kText:
      print(stmt.text);
      return Flow::kNext;
    case Stmt::Kind::kPrint:
      print(to_text(evaluate(*stmt.expr), budget_));
      return Flow::kNext;
    case Stmt::Kind::kIf:
      return execute(evaluate(*stmt.expr).truth() ? stmt.body : stmt.other);
    case Stmt::Kind::kFor:
      return run_for(stmt, evaluate(*stmt.expr), 0);
    case Stmt::Kind::kSet:
      assign(stmt.target, evaluate(*stmt.expr));
      return Flow::kNext;
    case Stmt::Kind::kMacro:
      keep_scopes();
      set_variable(stmt.name, make<Macro>(stmt, scope_));
      return Flow::kNext;
    case Stmt::Kind::kBreak:
      return Flow::kBreak;
    case Stmt::Kind::kContinue:
      return Flow::kContinue;
    default:
      return execute_scoped(stmt);
  }
}

/// Blocks with a scope of their own.
Interpreter::Flow Interpreter::execute_scoped(const Stmt& stmt) {
  if (stmt.kind == Stmt::Kind::kCall) {
    execute_call(stmt);
    return Flow::kNext;
  }
  std::vector<std::pair<const Target*, Value>> assignments;
  for (const auto& [target, expr] : stmt.assignments) {
    assignments.emplace_back(&target, evaluate(*expr));
  }
  Flow flow = Flow::kNext;
  Value result;
  {
    const ScopeGuard scope(*this, scope_);
    for (const auto& [target, value] : assignments) assign(*target, value);
    if (stmt.kind == Stmt::Kind::kWith) return execute(stmt.body);
    if (stmt.kind == Stmt::Kind::kGeneration) {
      execute_generation(stmt);
      return Flow::kNext;
    }
    std::string printed = captured([&] { flow = execute(stmt.body); });
    result = filtered(stmt.expr.get(), text(std::move(printed)));
  }
  if (stmt.kind == Stmt::Kind::kSetBlock) {
    assign(stmt.target, result);
  } else {
    print(to_text(result, budget_));
  }
  return flow;
}

/// Only what is printed directly is recorded: elsewhere its position is not known.
void Interpreter::execute_generation(const Stmt& stmt) {
  const bool is_direct = out_ == &rendered_.text;
  const size_t begin = rendered_.text.size();
  execute(stmt.body);
  if (is_direct) rendered_.generated.push_back({begin, rendered_.text.size()});
}

std::vector<Value> Interpreter::kept_items(const Stmt& stmt, const Value& items) {
  std::vector<Value> all = elements(items);
  if (!stmt.condition) return all;
  const ScopeGuard scope(*this, scope_);
  std::vector<Value> kept;
  for (const Value& one : all) {
    assign(stmt.target, one);
    if (evaluate(*stmt.condition).truth()) kept.push_back(one);
  }
  return kept;
}

Interpreter::Flow Interpreter::run_for(const Stmt& stmt, const Value& items, int depth) {
  auto* loop = make<Loop>(stmt, kept_items(stmt, items), depth);
  const size_t size = loop->items().size();
  for (size_t i = 0; i < size; ++i) {
    budget_.step();
    const ScopeGuard scope(*this, scope_);
    loop->move_to(i);
    if (loop_name_ >= 0) set_variable(loop_name_, loop);
    assign(stmt.target, loop->items()[i]);
    if (execute(stmt.body) == Flow::kBreak) break;
  }
  loop->end();
  return size == 0 ? execute(stmt.other) : Flow::kNext;
}

Value Interpreter::run_loop_again(const Stmt& loop, const Value& items, int depth) {
  const Nested nested(depth_);
  return text(captured([&] { run_for(loop, items, depth); }));
}

Value Interpreter::run_macro(const Stmt& macro, Scope* defined_in, Arguments& arguments) {
  const Nested nested(depth_);
  const int line = line_;
  const ScopeGuard scope(*this, defined_in);
  if (arguments.values.size() > macro.parameters.size()) {
    fail(str("macro '", macro.text, "' takes ", macro.parameters.size(), " values; the call has ",
             arguments.values.size()));
  }
  for (const auto& [name, value] : arguments.named) {
    const bool is_known =
        name == "caller" ||
        std::any_of(macro.parameters.begin(), macro.parameters.end(),
                    [&name = name](const Parameter& p) { return p.text == name; });
    if (!is_known) fail(str("macro '", macro.text, "' has no parameter '", name, "'"));
    if (name == "caller" && caller_name_ >= 0) set_variable(caller_name_, value);
  }
  for (size_t i = 0; i < macro.parameters.size(); ++i) {
    const Parameter& parameter = macro.parameters[i];
    const Value* given = arguments.find(i, parameter.text);
    Value value = Undefined{str("parameter '", parameter.text, "' was not provided")};
    if (given != nullptr) {
      value = *given;
    } else if (parameter.fallback) {
      value = evaluate(*parameter.fallback);
    }
    set_variable(parameter.name, std::move(value));
  }
  Value out = text(captured([&] { execute(macro.body); }));
  line_ = line;
  return out;
}

void Interpreter::execute_call(const Stmt& stmt) {
  const Expr& expr = *stmt.expr;
  keep_scopes();
  const Value callee = evaluate(*expr.children[0]);
  Arguments given = arguments(expr);
  given.named.emplace_back("caller", make<Macro>(stmt, scope_));
  print(to_text(call(callee, given), budget_));
}

Value Interpreter::filtered(const Expr* filters, Value subject) {
  if (filters == nullptr) return subject;
  if (filters->children[0]) subject = filtered(filters->children[0].get(), std::move(subject));
  Arguments given = arguments(*filters);
  return filter(filters->text, subject, given);
}

}  // namespace cleave::inline chat::jinja
