#pragma once
#include <string>
#include <utility>
#include <vector>

#include "cleave/chat/jinja/value.h"

namespace cleave::inline chat::jinja {

class Interpreter;

/// A value that has identity: a function, a namespace, the `loop` of a loop. Owned by the run.
class Object {
 public:
  Object() = default;
  virtual ~Object() = default;
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;

  /// The attribute; undefined if it has none.
  virtual Value attribute(Interpreter& run, const std::string& name);
  /// Throws Error(kFormat) if the object cannot be called.
  virtual Value call(Interpreter& run, Arguments& arguments);
  [[nodiscard]] virtual bool is_callable() const { return false; }
};

/// {% set ns = namespace(found=false) %}: attributes that blocks inside may set.
class Namespace final : public Object {
 public:
  Value attribute(Interpreter& run, const std::string& name) override;
  /// Sets an attribute, which may be new.
  void set(const std::string& name, Value value, Budget& budget);

 private:
  std::vector<std::pair<std::string, Value>> values_;
};

/// A function of the language, such as range().
class Function final : public Object {
 public:
  /// What the function does.
  using Body = Value (*)(Interpreter& run, Arguments& arguments);
  explicit Function(Body body) : body_(body) {}
  Value call(Interpreter& run, Arguments& arguments) override { return body_(run, arguments); }
  [[nodiscard]] bool is_callable() const override { return true; }

 private:
  Body body_;
};

/// The function of that name; null if the language has none.
Function::Body find_function(std::string_view name);

}  // namespace cleave::inline chat::jinja
