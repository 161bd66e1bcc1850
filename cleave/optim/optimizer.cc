#include "cleave/optim/optimizer.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include <ATen/ATen.h>

namespace cleave {

using Kind = OptimizerOptions::Kind;

Kind OptimizerOptions::kind_from_name(const std::string& name) {
  if (name == "adamw") return Kind::kAdamW;
  if (name == "adam") return Kind::kAdam;
  if (name == "sgd") return Kind::kSgd;
  throw Error(Code::kUsage, str("optimizer '", name, "' is unknown; expected adamw, adam or sgd"));
}

OptimizerOptions::DecayOn OptimizerOptions::decay_from_name(const std::string& name) {
  if (name == "matrices") return DecayOn::kMatrices;
  if (name == "all") return DecayOn::kAll;
  throw Error(Code::kUsage, str("decay-on '", name, "' is unknown; expected matrices or all"));
}

Optimizer::Optimizer(Parameters parameters, const OptimizerOptions& options) : options_(options) {
  for (const auto& p : parameters) {
    const bool decays =
        options.decay_on == OptimizerOptions::DecayOn::kAll || p->shape().size() >= 2;
    (decays ? decayed_ : plain_).push_back(states_.size());
    states_.push_back({.parameter = p, .exp_avg = {}, .exp_avg_sq = {}});
  }
  (void)states();  // memory that is missing is missing at once, not after the first backward
}

const std::vector<Optimizer::State>& Optimizer::states() const {
  for (State& s : states_) {
    const Tensor& leaf = s.parameter->leaf();
    if (has_moments() && leaf.defined() && !s.exp_avg.defined()) {
      s.exp_avg = at::zeros_like(leaf.detach());
      s.exp_avg_sq = at::zeros_like(s.exp_avg);
    }
    // The model was cut after the optimizer was made: moments of the whole become this rank's.
    const bool is_whole =
        s.exp_avg.defined() && s.exp_avg.sizes() == at::IntArrayRef(s.parameter->shape());
    if (!is_whole || s.exp_avg.sizes() == leaf.sizes()) continue;
    s.exp_avg = s.parameter->part_of(s.exp_avg);
    s.exp_avg_sq = s.parameter->part_of(s.exp_avg_sq);
  }
  return states_;
}

void Optimizer::step(double lr) {
  const at::NoGradGuard no_grad;
  ++num_steps_;
  (void)states();
  step_group(decayed_, lr, options_.weight_decay);
  step_group(plain_, lr, 0);
}

void Optimizer::step_group(const std::vector<size_t>& group, double lr, double weight_decay) {
  std::vector<Tensor> params, grads, avgs, squares;
  for (const size_t i : group) {
    const State& s = states_[i];
    if (s.parameter->leaf().numel() == 0) continue;  // a rank that holds nothing of it
    params.push_back(s.parameter->leaf().detach());
    grads.push_back(s.parameter->leaf().grad());
    avgs.push_back(s.exp_avg);
    squares.push_back(s.exp_avg_sq);
  }
  if (params.empty()) return;
  if (options_.kind == Kind::kSgd) {
    for (size_t i = 0; i < params.size(); ++i) {
      if (weight_decay != 0) grads[i] = grads[i].add(params[i], weight_decay);
      params[i].add_(grads[i], -lr);
    }
    return;
  }
  const std::vector<Tensor> steps(params.size(),
                                  at::full({}, static_cast<double>(num_steps_),
                                           at::device(params[0].device()).dtype(at::kFloat)));
  const double b1 = options_.beta1;
  const double b2 = options_.beta2;
  if (options_.kind == Kind::kAdamW) {
    at::_fused_adamw_(params, grads, avgs, squares, {}, steps, lr, b1, b2, weight_decay,
                      options_.eps, false, false);
  } else {
    at::_fused_adam_(params, grads, avgs, squares, {}, steps, lr, b1, b2, weight_decay,
                     options_.eps, false, false);
  }
}

void Optimizer::zero_grad() {
  for (const State& s : states_) s.parameter->leaf().mutable_grad().reset();
}

LrSchedule::Kind LrSchedule::kind_from_name(const std::string& name) {
  if (name == "cosine") return Kind::kCosine;
  if (name == "linear") return Kind::kLinear;
  if (name == "constant") return Kind::kConstant;
  throw Error(Code::kUsage,
              str("schedule '", name, "' is unknown; expected cosine, linear or constant"));
}

double LrSchedule::at(int64_t step) const {
  if (step < warmup) return peak * static_cast<double>(step + 1) / static_cast<double>(warmup);
  if (kind == Kind::kConstant) return peak;
  const double rest = static_cast<double>(std::max<int64_t>(num_steps - warmup, 1));
  const double done = std::min(static_cast<double>(step - warmup) / rest, 1.0);
  if (kind == Kind::kLinear) return peak * (1 - done);
  return peak * 0.5 * (1 + std::cos(std::numbers::pi * done));
}

}  // namespace cleave
