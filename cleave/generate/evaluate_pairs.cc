#include "cleave/generate/evaluate_pairs.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "cleave/data/batch.h"
#include "cleave/generate/evaluate.h"
#include "cleave/nn/head_loss.h"
#include "cleave/train/preference.h"

namespace cleave::inline generation {

bool evaluates_pairs(const EvalOptions& options, const Runnable& runnable) {
  const std::string& task = options.task;
  if (task == "dpo") {
    CLEAVE_CHECK(runnable.task() == Task::kLm, Code::kUsage, "--task dpo does not fit ",
                 runnable.folder().path, "; preferences need a model that generates text");
    return true;
  }
  CLEAVE_CHECK(task.empty() || task_from_name(task) == runnable.task(), Code::kUsage, "--task ",
               task, " does not fit ", runnable.folder().path,
               ", which is a model for another task; omit it");
  CLEAVE_CHECK(options.reference.empty(), Code::kUsage, "--reference needs --task dpo");
  CLEAVE_CHECK(options.dpo_beta == EvalOptions{}.dpo_beta, Code::kUsage,
               "--dpo-beta needs --task dpo");
  return false;
}

Runnable reference_of(const EvalOptions& options, const Runnable& runnable) {
  const ModelFolder& folder = runnable.folder();
  CLEAVE_CHECK(!options.reference.empty() || !folder.adapter.empty(), Code::kUsage,
               "--task dpo compares with a reference model; give --reference the model from which ",
               folder.path, " was trained");
  Runnable reference(options.reference.empty() ? folder.weights_path() : options.reference,
                     runnable.dtype_name(), options.device);
  CLEAVE_CHECK(reference.facts().vocab_size == runnable.facts().vocab_size, Code::kUsage,
               "the reference model ", reference.folder().path, " has a vocabulary of ",
               reference.facts().vocab_size, " ids, and ", folder.path, " has one of ",
               runnable.facts().vocab_size,
               "; give --reference the model from which it was trained");
  return reference;
}

Tensor pair_log_probs(Model& model, const Axis& tp, const Dataset& pairs, int64_t batch_size,
                      const std::function<void(int64_t)>& on_pairs) {
  Tensor all = at::zeros({pairs.size(), 2}, at::kDouble);
  const BatchRules rules{.pad_id = std::max<int64_t>(model.facts().pad_id.value_or(0), 0)};
  for_batches(model, pairs, batch_size, rules, [&](const Batch& batch, int64_t first) {
    const at::NoGradGuard no_grad;
    const Tensor targets = targets_of(batch, Task::kDpo);
    Context context = context_of(batch);
    context.head_loss =
        std::make_shared<const HeadLoss>(HeadLoss{.labels = targets, .is_per_token = true});
    const DTensor result = model(DTensor(batch.ids, tp, Replicate{}), context);
    const Tensor log_probs = sequence_log_probs(result, targets);
    const int64_t count = log_probs.size(0) / 2;
    all.narrow(0, first, count).copy_(log_probs.view({-1, 2}));
    if (on_pairs) on_pairs(first + count);
  });
  return all;
}

PreferenceScore preference_score(const Tensor& log_probs, const Tensor& reference, double beta) {
  for (const auto& [values, name] :
       {std::pair(log_probs, "the model"), std::pair(reference, "the reference model")}) {
    const Tensor is_wrong = at::isfinite(values).all(-1).logical_not();
    CLEAVE_CHECK(!is_wrong.any().item<bool>(), Code::kNumerics, "the log-probabilities of pair ",
                 is_wrong.to(at::kLong).argmax().item<int64_t>() + 1, " of ", values.size(0),
                 " under ", name, " are not finite; check its weights");
  }
  const PairTerms terms = pair_terms(log_probs, reference, beta);
  return {.loss = terms.losses.mean().item<double>(),
          .reward_margin = terms.margins.mean().item<double>(),
          .right = terms.margins.gt(0).sum().item<int64_t>(),
          .pairs = log_probs.size(0)};
}

}  // namespace cleave::inline generation
