#include "cleave/train/task_setup.h"

#include <algorithm>

#include "cleave/data/dataset_kinds.h"
#include "cleave/model/label_task.h"
#include "cleave/planner/layout_options.h"
#include "cleave/train/task.h"

namespace cleave::inline train {
namespace {

/// As in transformers, a classifier of sequences that have one class each needs no problem_type.
/// With that of a regression, the number that is learned is the model's result, not its sigmoid.
Json with_problem_type(const Json& config, const std::string& task) {
  if (task == "classify") return config;
  const auto* known = std::ranges::find(kLabelTasks, task, &LabelTask::name);
  return with_key(config, "problem_type", known->problem_type);
}

}  // namespace

bool fit_to_task(TrainSetup& setup) {
  const TrainOptions& o = setup.options;
  const std::string own = make_model(setup.config)->task();
  const std::string task = o.task.empty() ? own : o.task;
  if (!labels_sequences(task)) return false;
  // make_setup() reports the task.
  if (setup.folder && labels_sequences(own) && task != own) return false;
  const bool has_classes = task != kRegression;
  const bool keeps_head = task == own && (setup.folder || !has_classes);
  std::vector<std::string> labels(has_classes ? 64 : 1);  // enough for a plan that shards the head
  for (size_t i = 0; i < labels.size(); ++i) labels[i] = str("LABEL_", i);
  const Json config =
      with_problem_type(keeps_head ? setup.config : classifier_config(setup.config, labels), task);
  if (make_model(config)->task() != task) return false;
  setup.config = config;
  setup.changes_task = setup.folder && !keeps_head;
  return has_classes && !keeps_head;
}

std::unique_ptr<Model> name_classes(TrainSetup& setup) {
  const TrainOptions& o = setup.options;
  const bool is_multilabel = setup.task == Task::kMultilabel;
  const auto names = is_multilabel ? multilabel_names(o.data) : class_names(o.data);
  setup.config = with_problem_type(classifier_config(setup.config, names),
                                   is_multilabel ? "multilabel" : "classify");
  auto model = make_model(setup.config);
  if (o.plan.empty()) setup.layout.plan = model->plan(o.sequence_parallel);
  try_layout(*model, setup.layout);
  return model;
}

Task choose_task(const TrainOptions& o, const Model& model) {
  if (o.task == "dpo") {
    CLEAVE_CHECK(model.task() == "lm", Code::kUsage,
                 "--task dpo does not fit this model, which is trained for ", model.task(),
                 "; preferences need a model that generates text");
    CLEAVE_CHECK(o.train_on == TrainOptions{}.train_on, Code::kUsage, "--train-on ", o.train_on,
                 " does not fit --task dpo, whose loss is on the answers; omit it");
    return Task::kDpo;
  }
  CLEAVE_CHECK(o.dpo_beta == TrainOptions{}.dpo_beta, Code::kUsage, "--dpo-beta needs --task dpo");
  CLEAVE_CHECK(
      !labels_sequences(o.task) || model.task() != "lm" || model.config().has("architectures"),
      Code::kUsage, "--task ", o.task,
      " needs the name of the model's class in its config.json, as in ",
      R"("architectures": ["LlamaForCausalLM"]; add it)");
  CLEAVE_CHECK(o.task.empty() || o.task == model.task(), Code::kUsage, "--task ", o.task,
               " does not fit this model, which is trained for ", model.task(),
               "; leave it out, or give another --model");
  return task_of(model);
}

}  // namespace cleave::inline train
