#include "cleave/train/task.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "cleave/nn/cross_entropy.h"
#include "cleave/nn/label_loss.h"
#include "cleave/train/preference.h"

namespace cleave::inline train {

Batch BatchRules::make(const Dataset& data, const SampleOrder& order, int64_t step, int64_t begin,
                       int64_t end) const {
  Batch batch = make_batch(data, order, step, begin, end, pad_id);
  return masking ? masked(batch, *masking, step) : batch;
}

Batch BatchRules::make_for_eval(const Dataset& data, const SampleOrder& order, int64_t step,
                                int64_t begin, int64_t end) const {
  Batch batch = make_batch(data, order, step, begin, end, pad_id);
  if (!masking) return batch;
  Batch numbered = batch;
  numbered.first_row = step * order.batch_size + begin;
  numbered = masked(numbered, *masking, /*step=*/0);
  batch.ids = numbered.ids;
  batch.labels = numbered.labels;
  return batch;
}

BatchRules batch_rules(const Model& model, const Tokenizer* tokenizer, bool data_is_text,
                       uint64_t seed) {
  BatchRules rules{.pad_id = std::max<int64_t>(model.facts().pad_id.value_or(0), 0)};
  if (task_of(model) != Task::kMlm || !data_is_text) return rules;
  CLEAVE_CHECK(tokenizer != nullptr && tokenizer->special().mask, Code::kUsage, "the ",
               tokenizer == nullptr ? "missing" : tokenizer->kind(),
               " tokenizer has no mask token, which task mlm needs for text; give a --tokenizer "
               "folder that has one, or rows of ids with labels");
  MaskingOptions masking{.mask_id = *tokenizer->special().mask,
                         .vocab_size = std::min(tokenizer->vocab_size(), model.facts().vocab_size),
                         .is_special = {},
                         .seed = seed};
  for (int64_t id = 0; id < masking.vocab_size; ++id) {
    masking.is_special.push_back(tokenizer->is_special(id));
  }
  rules.masking = std::move(masking);
  return rules;
}

Task task_of(const Model& model) {
  return task_from_name(model.task());
}

Tensor targets_of(const Batch& batch, Task task) {
  if (task == Task::kRegression || task == Task::kMultilabel) return batch.labels.to(at::kDouble);
  const bool is_causal = task == Task::kLm || task == Task::kDpo;
  return is_causal ? next_token_labels(batch.labels) : batch.labels;
}

Tensor num_terms(const Tensor& targets, Task task) {
  return task == Task::kDpo ? pairs_with_targets(targets).sum() : has_label(targets).sum();
}

int64_t num_right(const DTensor& logits, const Tensor& targets) {
  const at::NoGradGuard no_grad;
  return logits.full_tensor().argmax(-1).eq(targets).sum().item<int64_t>();
}

}  // namespace cleave::inline train
