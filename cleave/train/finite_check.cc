#include "cleave/train/finite_check.h"

#include <cmath>

#include <ATen/ATen.h>

namespace cleave::inline train {
namespace {

/// The first weight with a NaN or infinity in this rank's shard; "" if there is none.
std::string first_not_finite(const Parameters& parameters) {
  const at::NoGradGuard no_grad;
  for (const auto& parameter : parameters) {
    if (!at::isfinite(parameter->leaf()).all().item<bool>()) return parameter->name();
  }
  return "";
}

}  // namespace

void check_finite(const RankModel& rank, const Axis& everyone, int64_t step, double loss,
                  const GradientNorm& norm) {
  if (std::isfinite(loss) && std::isfinite(norm.value)) return;
  if (!std::isfinite(loss)) {
    const std::string weight = first_not_finite(rank.parameters());
    CLEAVE_CHECK(weight.empty(), Code::kNumerics, "the weight ", weight, " is not finite on rank ",
                 everyone.rank(), ", and the loss is ", loss, " in step ", step + 1,
                 "; resume from an earlier checkpoint with a smaller --lr");
    everyone.barrier("weight check");
    throw Error(Code::kNumerics,
                str("the loss is ", loss, " in step ", step + 1,
                    "; no weight was changed in it; try a smaller --lr or --clip"));
  }
  // The rank that holds the tensor reports it; the others wait for the abort.
  if (norm.not_finite.empty()) everyone.barrier("gradient check");
  throw Error(Code::kNumerics, str("the gradient of ", norm.not_finite, " is not finite in step ",
                                   step + 1, " on rank ", everyone.rank(),
                                   "; no weight was changed in it. Try a smaller --lr"));
}

void check_any_update(const RunState& state, RankModel& rank) {
  const LossScale& scale = state.loss_scale;
  if (state.step == 0 || rank.optimizer().num_steps() > 0) return;
  CLEAVE_CHECK(scale.is_on(), Code::kFormat, "--data has no labels: in all ", state.step,
               " steps they were -100, so no weight was changed");
  throw Error(
      Code::kNumerics,
      str("all ", state.step, " steps overflowed fp16, so no weight was changed; the loss scale, ",
          "which halves with each of them, is now ", scale.value(),
          ". Give more --steps, or --dtype bf16"));
}

}  // namespace cleave::inline train
