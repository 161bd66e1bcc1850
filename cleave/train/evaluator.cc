#include "cleave/train/evaluator.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include <ATen/ATen.h>

#include "cleave/base/clock.h"
#include "cleave/base/error.h"
#include "cleave/base/progress.h"
#include "cleave/comm/bootstrap/environment.h"

namespace cleave::inline train {

bool Evaluator::is_due(int64_t step) const {
  const int64_t every = setup_.options.eval_every;
  return setup_.eval_data && (step == setup_.num_steps || (every > 0 && step % every == 0));
}

void Evaluator::run(StepMetrics& metrics, EarlyStop& early_stop) {
  const double start = monotonic_s();
  swap_ema();
  const EvalSum sum = evaluate_weights();
  swap_ema();
  seconds_ += monotonic_s() - start;
  metrics.eval_loss = sum.loss();
  const bool has_accuracy = setup_.task == Task::kClassify || setup_.task == Task::kDpo;
  if (has_accuracy) metrics.eval_accuracy = sum.accuracy();
  // An evaluation that a signal interrupts does not count.
  if (!early_stop.is_on() || stop_.signal() != 0) return;
  Tensor same = at::tensor({sum.loss()}, at::kDouble);
  everyone_.broadcast_(same, 0, "early stop");  // all ranks must decide the same
  early_stop.note(metrics.step, same.item<double>());
}

/// Exchanges weights and averages, if averages are kept.
void Evaluator::swap_ema() {
  if (!rank_.optimizer().has_ema()) return;
  rank_.optimizer().swap_ema();
  rank_.refresh_weights();
}

EvalSum Evaluator::evaluate_weights() {
  EvalSum sum;
  const int64_t batch_size = setup_.order.batch_size;
  const int64_t size = setup_.eval_data->size();
  std::optional<Progress> progress;
  if (everyone_.rank() == 0) {
    progress.emplace(ProgressOptions{
        .total = size,
        .unit = setup_.task == Task::kDpo ? "evaluation pair" : "evaluation sequence",
        .may_be_live = !read_environment()});
  }
  for (int64_t begin = 0; begin < size; begin += batch_size) {
    if (stop_.poll("eval")) return {.loss_sum = NAN};
    const int64_t count = std::min(batch_size, size - begin);
    sum += rank_.eval_pass(batches_.micro_batches(*setup_.eval_data, begin / batch_size, count));
    if (progress) progress->update(begin + count);
  }
  sum = EvalSum::from(batches_.dp().all_reduce(sum.tensor(), "eval loss"));
  CLEAVE_CHECK(sum.num_labels > 0, Code::kFormat,
               "--eval-data has no labels: all are -100; evaluation needs at least one");
  return sum;
}

}  // namespace cleave::inline train
