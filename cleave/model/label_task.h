#pragma once
#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "cleave/text/json.h"

namespace cleave::inline model {

/// A task whose labels are of whole sequences, and the problem_type of such a model's config.json.
struct LabelTask {
  std::string_view name;
  std::string_view problem_type;
};
/// The task, and the problem_type, of a model whose one label is a number, not a probability.
inline constexpr std::string_view kRegression = "regression";

/// All of them.
inline constexpr std::array<LabelTask, 3> kLabelTasks{
    {{.name = "classify", .problem_type = "single_label_classification"},
     {.name = "multilabel", .problem_type = "multi_label_classification"},
     {.name = kRegression, .problem_type = kRegression}}};

/// Whether the task has labels of whole sequences: a class, several classes, or a number.
inline bool labels_sequences(std::string_view task) {
  return std::any_of(kLabelTasks.begin(), kLabelTasks.end(),
                     [&](const LabelTask& known) { return known.name == task; });
}

/// The task of a config.json's classifier with `num_labels` labels. Without a problem_type,
/// transformers takes one label for a regression. Throws Error(kFormat) for another problem_type,
/// and for a regression with several labels.
inline std::string label_task(const Json& config, size_t num_labels) {
  const bool is_one = num_labels == 1;
  const std::string kind =
      config.string_or("problem_type", is_one ? kRegression : kLabelTasks.front().problem_type);
  for (const LabelTask& task : kLabelTasks) {
    const bool fits = is_one || task.problem_type != kRegression;
    if (kind == task.problem_type && fits) return std::string(task.name);
  }
  config.at("problem_type")
      .fail(
          "expected \"single_label_classification\", \"multi_label_classification\", or "
          "\"regression\" with one label");
}

}  // namespace cleave::inline model
