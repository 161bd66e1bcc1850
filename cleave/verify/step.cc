#include "cleave/verify/step.h"

#include <optional>

#include <ATen/ATen.h>

#include "cleave/generate/generate.h"
#include "cleave/model/decoder/decoder.h"
#include "cleave/nn/gradient_state.h"
#include "cleave/nn/kv_cache.h"
#include "cleave/nn/label_loss.h"
#include "cleave/optim/optimizer.h"
#include "cleave/parallel/gradient_sync.h"

namespace cleave::verifying {

namespace {

/// Keeps fp16 gradients from underflowing, as in training.
constexpr double kHalfLossScale = 1024;

/// A copy of `p` and its gradient in the type of master weights.
std::shared_ptr<Parameter> master_of(const Parameter& p) {
  const at::ScalarType type = master_type(p.leaf().scalar_type());
  auto master = std::make_shared<Parameter>(p.shape(), p.init());
  if (p.is_split()) master->shard(p.axis(), p.placement().dim(), p.placement().split());
  master->set_leaf(p.leaf().detach().to(type, /*non_blocking=*/false, /*copy=*/true));
  master->leaf().mutable_grad() = p.leaf().grad().to(type);
  record_sum(*master, p.axis());  // the gradient that was copied is complete
  return master;
}

/// The parameters that have memory: all but the experts of other ranks.
Parameters held_of(const Parameters& parameters) {
  Parameters out;
  for (const auto& p : parameters) {
    if (p->leaf().defined()) out.push_back(p);
  }
  return out;
}

}  // namespace

at::ScalarType master_type(at::ScalarType type) {
  return type == at::kDouble ? at::kDouble : at::kFloat;
}

Context context_of(const StepInput& input, uint64_t seed) {
  Context context;
  context.training = input.training;
  context.seed = seed;
  return context;
}

std::vector<Quantity> run_step(Model& model, const ParallelAxes& axes, const StepInput& input,
                               const VerifySettings& settings) {
  const Axis& tp = axes.tp;
  const Axis& dp = axes.dp;
  const Parameters parameters = model.parameters();
  const Parameters held = held_of(parameters);
  clear_gradients(held);
  const int64_t count = input.ids.size(0) / dp.size();
  const Range rows{count * dp.rank(), count * (dp.rank() + 1)};
  Context context = context_of(input, settings.seed);
  context.first_sample = rows.begin;
  const DTensor logits =
      model(DTensor(input.ids.narrow(0, rows.begin, count), tp, Replicate{}), context);
  const DTensor loss = loss_of(settings, logits, input.labels.narrow(0, rows.begin, count),
                               has_label(input.labels).sum().item<int64_t>());
  const double scale = settings.dtype == at::kHalf ? kHalfLossScale : 1;
  (loss.local() * scale).backward();
  GradientSync(held, dp, {.precision = std::nullopt}).complete();
  if (scale != 1) {
    for (const auto& p : held) {
      Tensor& grad = p->leaf().mutable_grad();
      grad = grad.to(master_type(grad.scalar_type())).div_(scale);
      record_sum(*p, p->axis());  // the new tensor has no record
    }
  }
  std::vector<Quantity> out{
      {.of = Of::kLoss, .local = dp.all_reduce(loss.local().detach(), "verified loss")},
      {.of = Of::kOutput,
       .local = logits.local().detach(),
       .axis = tp,
       .placement = logits.placement(),
       .rows = rows}};
  for (const auto& p : parameters) {
    out.push_back(quantity_of(Of::kGradient, *p, gradient_of(*p)));
  }
  const double norm = norm_of(settings, parameters, tp, axes.ep);
  out.push_back({.of = Of::kNorm,
                 .local = at::scalar_tensor(norm, at::kDouble),
                 .terms = num_elements(parameters)});
  return out;
}

std::vector<Quantity> stepped_weights(Model& model) {
  const Parameters parameters = model.parameters();
  Parameters masters;
  for (const auto& p : held_of(parameters)) masters.push_back(master_of(*p));
  Optimizer optimizer(masters, {.eps = kAdamEps, .weight_decay = 0.1});
  optimizer.step(kLearningRate);
  std::vector<Quantity> out;
  auto master = masters.begin();
  for (const auto& p : parameters) {
    out.push_back(
        quantity_of(Of::kStepped, *p, p->leaf().defined() ? (*master++)->leaf() : Tensor()));
  }
  return out;
}

namespace {

/// The logits of the last of `ids` [B, T] with `padding` ids before them, after a prefill of the
/// others; empty if the prefill does not fill the cache.
std::optional<DTensor> decode_last(Model& model, const Axis& tp, const Tensor& ids,
                                   int64_t padding) {
  const Tensor padded = at::constant_pad_nd(ids, {padding, 0}, 0);
  const int64_t end = padded.size(1);
  KvCache cache(end);
  const auto logits_of = [&](int64_t begin, int64_t count) {
    Context context;
    context.cache = &cache;
    if (padding > 0) {
      const Tensor at = at::arange(begin, begin + count).expand({ids.size(0), count});
      context.positions = (at - padding).clamp_min(0);
      context.first_key = at.clamp_max(padding).to(ids.device());  // padding attends to itself
    }
    return model(DTensor(padded.narrow(1, begin, count), tp, Replicate{}), context);
  };
  logits_of(0, end - 1);
  if (!cache.is_complete(end - 1)) return std::nullopt;
  return logits_of(end - 1, 1);
}

}  // namespace

std::vector<Quantity> decoded_logits(Model& model, const ParallelAxes& axes,
                                     const StepInput& input) {
  const at::NoGradGuard no_grad;
  const int64_t count = input.ids.size(0) / axes.dp.size();
  const Range rows{count * axes.dp.rank(), count * (axes.dp.rank() + 1)};
  const Tensor ids = input.ids.narrow(0, rows.begin, count);
  const int64_t num_past = ids.size(1) - 1;
  std::vector<Quantity> out;
  for (const int64_t padding : {0, 1}) {
    const int64_t end = num_past + padding;
    if (num_past == 0 || end == rotary_switch(model)) continue;
    if (padding > 0 && end >= model.facts().max_positions) continue;
    const std::optional<DTensor> logits = decode_last(model, axes.tp, ids, padding);
    if (!logits) return {};
    out.push_back({.of = Of::kDecoded,
                   .subject = padding > 0 ? "padded sequences" : "whole sequences",
                   .local = logits->local(),
                   .axis = axes.tp,
                   .placement = logits->placement(),
                   .rows = rows});
  }
  return out;
}

std::vector<std::vector<int64_t>> continued(Model& model, const Axis& tp,
                                            const std::vector<std::vector<int64_t>>& prompts,
                                            int64_t num_new_tokens) {
  const at::NoGradGuard no_grad;
  const Generation generation = generate(model, tp, prompts, {.max_new_tokens = num_new_tokens});
  std::vector<std::vector<int64_t>> out;
  for (const auto& sequences : generation.prompts) out.push_back(sequences.front().ids);
  return out;
}

}  // namespace cleave::verifying
