#include "cleave/train/preference.h"

#include <ATen/ATen.h>

#include "cleave/nn/cross_entropy.h"

namespace cleave::inline train {

Tensor sequence_log_probs(const DTensor& result, const Tensor& targets) {
  const DTensor losses =
      result.dim() == targets.dim()
          ? result
          : cross_entropy(result, targets, {.reduction = CrossEntropyOptions::Reduction::kNone});
  // In fp64: a reward is a small difference of these sums.
  return losses.local().to(at::kDouble).sum(-1).neg();
}

Tensor pairs_with_targets(const Tensor& targets) {
  return targets.ne(-100).any(-1).view({-1, 2}).all(-1);
}

PairTerms pair_terms(const Tensor& log_probs, const Tensor& reference, double beta) {
  const Tensor rewards = ((log_probs - reference) * beta).view({-1, 2});
  const Tensor margins = rewards.select(1, 0) - rewards.select(1, 1);
  return {.losses = at::log_sigmoid(margins).neg(), .margins = margins.detach()};
}

PairSums pair_sums(const DTensor& result, const Tensor& targets, const Tensor& reference,
                   double beta) {
  const Tensor counts = pairs_with_targets(targets);
  const PairTerms terms = pair_terms(sequence_log_probs(result, targets), reference, beta);
  const Tensor margins = terms.margins.masked_fill(counts.bitwise_not(), 0);
  // Read together: on a device, each read waits for it.
  const Tensor sums =
      at::stack({margins.sum(), margins.gt(0).sum().to(at::kDouble), counts.sum().to(at::kDouble)})
          .to(at::kCPU);
  const double* values = sums.const_data_ptr<double>();
  return {.loss = terms.losses.masked_fill(counts.bitwise_not(), 0).sum(),
          .margin = values[0],
          .right = static_cast<int64_t>(values[1]),
          .number = static_cast<int64_t>(values[2])};
}

}  // namespace cleave::inline train
