#pragma once
#include <string>
#include <string_view>
#include <utility>

#include "cleave/chat/jinja/interpreter.h"

namespace cleave::jinja {

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

}  // namespace cleave::jinja
