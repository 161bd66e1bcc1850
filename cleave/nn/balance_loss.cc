#include "cleave/nn/balance_loss.h"

#include <ATen/ATen.h>

#include "cleave/base/error.h"
#include "cleave/torch_internals/node.h"

namespace cleave::inline nn {
namespace {

/// `mask` as numbers [N, 1] of the type and on the device of `like` [N, E].
Tensor column_of(const Tensor& mask, const Tensor& like) {
  CLEAVE_CHECK(mask.numel() == like.size(0), Code::kShape, "the key mask has ", mask.numel(),
               " elements for ", like.size(0),
               " tokens; with an auxiliary loss it must have one for each token");
  return mask.reshape({-1, 1}).to(like.options());
}

}  // namespace

BalanceLoss::BalanceLoss(const BalanceOptions& options, double weight, at::Device device)
    : options_(options),
      factor_(weight * options.coefficient),
      sums_(at::zeros({2, options.num_experts}, at::dtype(at::kDouble).device(device))) {}

Tensor BalanceLoss::with_gradient(const Tensor& probabilities, const Tensor& mask) {
  return differentiable(
      "balance_loss", probabilities, [](const Tensor& t) { return t; },
      [self = shared_from_this(), mask](const Tensor& gradient) {
        CLEAVE_CHECK(self->gradient_.defined(), Code::kUsage,
                     "backward needs the sums of the auxiliary loss over all layers; call "
                     "BalanceLoss::close before it");
        const Tensor own = self->gradient_.to(gradient.options());
        return gradient + (mask.defined() ? column_of(mask, gradient) * own : own);
      });
}

void BalanceLoss::count(const Tensor& probabilities, const Tensor& experts, const Tensor& mask) {
  if (gradient_.defined()) return;
  const at::NoGradGuard no_grad;
  const Tensor p = probabilities.detach().to(at::kDouble);
  const Tensor counts = mask.defined() ? column_of(mask, p) : at::ones({p.size(0), 1}, p.options());
  // Sums of ones are exact, so that their order does not matter.
  const Tensor tokens =
      at::zeros({options_.num_experts}, p.options())
          .scatter_add_(0, experts.flatten(), counts.expand_as(experts).flatten());
  sums_ = sums_ + at::stack({tokens, (p * counts).sum(0)});
}

Tensor BalanceLoss::num_tokens() const {
  return (sums_[0].sum() / options_.top_k).clamp_min(1);
}

void BalanceLoss::close(const Tensor& sums) {
  sums_ = sums;
  const auto num_experts = static_cast<double>(options_.num_experts);
  gradient_ = sums_[0] * (factor_ * num_experts) / num_tokens().square();
}

Tensor BalanceLoss::value() const {
  const auto num_experts = static_cast<double>(options_.num_experts);
  return (sums_[0] * sums_[1]).sum() * num_experts / num_tokens().square();
}

Tensor BalanceLoss::summand() const {
  return value() * factor_;
}

}  // namespace cleave::inline nn
