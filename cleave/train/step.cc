#include "cleave/train/step.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "cleave/nn/cross_entropy.h"
#include "cleave/train/task.h"

namespace cleave {
namespace {

Context context_of(const Batch& batch) {
  Context context;
  context.key_mask = batch.attention_mask;
  context.token_types = batch.token_types;
  context.first_sample = batch.first_row;
  return context;
}

DTensor logits_of(Model& model, const Axis& tp, const Batch& batch, const Context& context) {
  return model(DTensor(batch.ids, tp, Replicate{}), context);
}

}  // namespace

void use_weights_as(const Parameters& parameters, at::ScalarType type) {
  for (const auto& p : parameters) {
    p->set_use(p->leaf().scalar_type() == type ? p->leaf() : p->leaf().to(type));
  }
}

PassResult train_pass(Model& model, const Mesh& mesh, const Batch& batch,
                      const StepOptions& options) {
  const Axis& tp = mesh["tp"];
  const Axis& dp = mesh["dp"];
  const Parameters parameters = model.parameters();
  const Task task = task_of(model);
  PassResult result;
  const Tensor own_labels = targets_of(batch, task).ne(-100).sum();
  result.num_labels = dp.all_reduce(own_labels, "number of labels").item<int64_t>();
  CLEAVE_CHECK(result.num_labels > 0, Code::kFormat, "the batch of step ", options.step + 1,
               " has no label to learn from: every place is -100");
  const int64_t num_rows = batch.ids.size(0);
  const int64_t rows_at_once = options.micro_batch_size > 0 ? options.micro_batch_size : num_rows;
  for (int64_t begin = 0; begin < num_rows; begin += rows_at_once) {
    const Batch micro = batch.rows(begin, std::min(begin + rows_at_once, num_rows));
    Context context = context_of(micro);
    context.training = true;
    context.seed = options.seed;
    context.step = options.step;
    context.valid_tokens = result.num_labels;
    use_weights_as(parameters, options.compute_type);
    const DTensor loss =
        cross_entropy(logits_of(model, tp, micro, context), targets_of(micro, task),
                      {.valid_tokens = result.num_labels});
    loss.local().backward();
    result.loss += loss.local().item<double>();
  }
  finish_gradients(parameters, tp);
  sum_gradients(parameters, dp);
  return result;
}

EvalSum eval_pass(Model& model, const Axis& tp, const Batch& batch, at::ScalarType compute_type) {
  const at::NoGradGuard no_grad;
  use_weights_as(model.parameters(), compute_type);
  const Task task = task_of(model);
  const Tensor targets = targets_of(batch, task);
  const DTensor logits = logits_of(model, tp, batch, context_of(batch));
  const DTensor loss =
      cross_entropy(logits, targets, {.reduction = CrossEntropyOptions::Reduction::kSum});
  return {.loss = loss.local().item<double>(),
          .num_labels = targets.ne(-100).sum().item<int64_t>(),
          .num_right = task == Task::kClassify ? num_right(logits, targets) : 0};
}

}  // namespace cleave
