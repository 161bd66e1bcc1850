#pragma once
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cleave/chat/jinja/object.h"
#include "cleave/chat/jinja/syntax.h"
#include "cleave/chat/jinja/template.h"

namespace cleave::inline chat::jinja {

/// The variables of a block. Belongs to the run.
struct Scope {
  Scope* outer = nullptr;
  std::vector<std::pair<int, Value>> values{};  ///< by number of the name
  bool is_kept = false;                         ///< a macro refers to it
};

/// One run of a template.
class Interpreter {
 public:
  Interpreter(const Syntax& syntax, const RenderOptions& options);

  /// Prints the template with these variables.
  Rendered run(const std::vector<std::pair<std::string, Value>>& variables);

  /// What the run may still use.
  [[nodiscard]] Budget& budget() { return budget_; }
  [[nodiscard]] const RenderOptions& options() const { return options_; }
  /// A string, which counts against the budget.
  Value text(std::string text);
  /// A list, which counts against the budget.
  Value list(std::vector<Value> items, bool is_tuple = false);
  /// A new object.
  template <class T, class... Args>
  T* make(Args&&... args) {
    budget_.bytes(sizeof(T) + 64);
    auto owned = std::make_unique<T>(std::forward<Args>(args)...);
    T* made = owned.get();
    objects_.push_back(std::move(owned));
    return made;
  }

  /// The value of an expression. Throws Error(kFormat) if an operation fails.
  Value evaluate(const Expr& expr);
  /// Calls a function, macro or method.
  Value call(const Value& callee, Arguments& arguments);
  /// subject.name and subject[key].
  Value attribute(const Value& subject, const std::string& name);
  Value item(const Value& subject, const Value& key);
  /// The element at `index` of a list or text, negative from its end; nullopt if there is none.
  std::optional<Value> element(const Value& subject, int64_t index);
  /// The elements of a list, the keys of a dict, the characters of a string.
  std::vector<Value> elements(const Value& value);
  Value filter(const std::string& name, const Value& subject, Arguments& arguments);
  bool test(const std::string& name, const Value& subject, Arguments& arguments);

  /// The text that a macro prints, with its parameters bound in a new scope inside `defined_in`.
  Value run_macro(const Stmt& macro, Scope* defined_in, Arguments& arguments);
  /// The text that the body of a recursive loop prints for `items`.
  Value run_loop_again(const Stmt& loop, const Value& items, int depth);

 private:
  enum class Flow : uint8_t { kNext, kBreak, kContinue };
  class ScopeGuard;

  /// Counts a nested statement, operation or call while it lives.
  class Nested {
   public:
    explicit Nested(int& depth) : depth_(depth) {
      if (depth_ >= kMaxDepth) fail("the template has too many nested calls");
      ++depth_;
    }
    ~Nested() { --depth_; }
    Nested(const Nested&) = delete;
    Nested& operator=(const Nested&) = delete;

   private:
    static constexpr int kMaxDepth = 800;
    int& depth_;
  };

  Flow execute(const Body& body);
  Flow execute(const Stmt& stmt);
  Flow execute_scoped(const Stmt& stmt);
  Flow run_for(const Stmt& stmt, const Value& items, int depth);
  std::vector<Value> kept_items(const Stmt& stmt, const Value& items);
  void execute_generation(const Stmt& stmt);
  void execute_call(const Stmt& stmt);
  void print(const std::string& text);
  /// The text that `body` prints.
  template <class Action>
  std::string captured(const Action& action);
  Value filtered(const Expr* filters, Value subject);
  void assign(const Target& target, const Value& value);
  [[nodiscard]] int number_of(std::string_view name) const;
  void set_variable(int name, Value value);
  [[nodiscard]] const Value* find_variable(int name);
  Value variable(const Expr& expr);
  Scope* new_scope(Scope* outer);
  void release(Scope* scope);
  void keep_scopes();

  Value evaluate_node(const Expr& expr);
  Value binary(const Expr& expr);
  Value unary(const Expr& expr);
  Value compare(const Expr& expr);
  Value concatenate(const Expr& expr);
  Value condition(const Expr& expr);
  Value slice(const Expr& expr);
  Value dict(const Expr& expr);
  Value call(const Expr& expr);
  Arguments arguments(const Expr& expr);
  bool contains(const Value& container, const Value& value);
  std::vector<Value> all(const std::vector<ExprPtr>& children);

  const Syntax& syntax_;
  const RenderOptions& options_;
  Budget budget_;
  std::vector<std::unique_ptr<Object>> objects_;
  std::vector<std::unique_ptr<Scope>> scopes_;
  std::vector<Scope*> free_scopes_;
  Scope* scope_ = nullptr;
  std::vector<Function*> functions_;  // by number of the name, made when used
  int loop_name_, caller_name_;
  std::string* out_ = nullptr;
  Rendered rendered_;
  int depth_ = 0;
  int line_ = 1;
};

/// What replaced() does to a string.
struct Replacement {
  std::string from, to;
  int64_t count = -1;  ///< occurrences, the first ones; -1: all
};
/// str.replace(), whose result counts against the budget before it is made.
std::string replaced(Budget& budget, const std::string& text, const Replacement& how);

/// Operators on two values: + - * / // % **.
Value operate(Interpreter& run, const std::string& op, const Value& a, const Value& b);
/// Whether strings, lists and dicts have a method of this name.
bool has_method(const Value& subject, std::string_view name);
/// Counts that a method or filter of a string may search it for its arguments.
void charge_searches(Budget& budget, const Value& subject, const Arguments& arguments);
/// Calls a method of a string, list or dict.
Value call_method(Interpreter& run, const Method& method, Arguments& arguments);

/// A value and the arguments of a filter after it.
struct FilterCall {
  Interpreter& run;
  const Value& subject;
  const Arguments& arguments;

  /// The argument at `index`, or of that name; `fallback` if neither is given.
  [[nodiscard]] Value argument(size_t index, std::string_view name, const Value& fallback) const {
    return arguments.get(index, name, fallback);
  }
  /// The subject as a string.
  [[nodiscard]] std::string text() const { return to_text(subject, run.budget()); }
};

/// Computes the result of a filter.
using FilterBody = Value (*)(const FilterCall& call);

/// A filter over lists; null if there is none of this name.
FilterBody find_list_filter(std::string_view name);

}  // namespace cleave::inline chat::jinja
