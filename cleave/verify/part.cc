#include "cleave/verify/part.h"

#include <algorithm>
#include <cmath>

#include <ATen/ATen.h>

#include "cleave/layout/shards.h"
#include "cleave/nn/gradient_state.h"
#include "cleave/nn/label_loss.h"
#include "cleave/verify/numbers.h"

namespace cleave::verifying {
namespace {

/// This rank's fraction of a sum over the axis: a power of 2, so products are exact in any type.
double share_of(const Axis& axis) {
  const int halvings = std::min(axis.rank() + 1, axis.size() - 1);
  return std::ldexp(1.0, -halvings);
}

/// This rank's shard of a whole value with the placement of `like`.
Tensor local_value(const Tensor& whole, const DTensor& like) {
  const Placement& p = like.placement();
  if (!like.is_split() || p.is_whole()) return whole;
  if (p.is_partial()) return whole * share_of(like.axis());
  return Shards{like.axis(), p, "input"}.slice(whole);
}

/// This rank's shard of the gradient of `y`. `whole` is the gradient on one rank.
Tensor local_gradient(const Tensor& whole, const DTensor& y) {
  const Placement& p = y.placement();
  if (!y.is_split() || p.is_replicate() || p.is_partial()) return whole;
  if (p.is_fanout()) return whole * share_of(y.axis());
  return Shards{y.axis(), p, "gradient"}.owned_slice(whole);
}

std::vector<int64_t> whole_shape(const DTensor& t) {
  std::vector<int64_t> shape;
  for (int64_t d = 0; d < t.dim(); ++d) shape.push_back(t.size(d));
  return shape;
}

Moved moved(const Meter* meter) {
  return meter == nullptr ? Moved{} : meter->moved();
}

/// Experts got the same rows from each rank of `ep`, so their gradients are sums of equal ones.
void average_experts(const Parameters& parameters, const Axis& ep) {
  if (ep.size() == 1) return;
  const at::NoGradGuard no_grad;
  for (const auto& p : parameters) {
    if (!p->copies() || !p->is_here()) continue;
    p->leaf().mutable_grad().div_(ep.size());
    record_scaled(*p);
  }
}

}  // namespace

DTensor loss_of(const VerifySettings& settings, const DTensor& logits, const Tensor& labels,
                int64_t valid_tokens) {
  if (settings.loss) return settings.loss(logits, labels, valid_tokens);
  return label_loss(logits, labels, valid_tokens);
}

void clear_gradients(const Parameters& parameters) {
  for (const auto& p : parameters) {
    if (p->leaf().defined()) p->leaf().mutable_grad().reset();
  }
}

int64_t num_elements(const Parameters& parameters) {
  int64_t count = 0;
  for (const auto& p : parameters) count += p->numel();
  return count;
}

double norm_of(const VerifySettings& settings, const Parameters& parameters, const Axis& tp,
               const Axis& ep) {
  return settings.norm ? settings.norm(parameters, tp) : gradient_norm(parameters, tp, ep).value;
}

bool are_of_expert(const Parameters& parameters) {
  return !parameters.empty() &&
         std::ranges::all_of(parameters, [](const auto& p) { return p->copies().has_value(); });
}

std::vector<Quantity> run_part(const Part& part, const Tensor& whole_x,
                               const VerifySettings& settings, const Meter* meter,
                               PartBytes* bytes) {
  clear_gradients(part.parameters);
  Tensor x = local_value(whole_x, part.x);
  if (x.is_floating_point()) x = x.detach().clone().requires_grad_();
  const Moved before = moved(meter);
  const DTensor y = part.run(part.x.with(x));
  const Moved between = moved(meter);
  if (y.local().requires_grad()) {
    // Drawn in the type under test, so that one rank in fp64 has the same numbers.
    const Tensor upstream =
        noise(whole_shape(y), settings.dtype, settings.seed, "upstream " + part.name);
    y.local().backward(local_gradient(upstream.to(y.local().options()), y));
  }
  if (bytes != nullptr) *bytes = {.forward = between - before, .backward = moved(meter) - between};
  std::vector<Quantity> out{{.of = Of::kOutput,
                             .local = y.local().detach(),
                             .axis = y.axis(),
                             .placement = y.placement()}};
  if (x.is_floating_point()) {
    const Tensor grad = x.grad().defined() ? x.grad() : at::zeros_like(x);
    out.push_back({.of = Of::kInputGradient,
                   .local = grad,
                   .axis = part.x.axis(),
                   .placement = part.x.placement(),
                   .is_gradient = true});
  }
  if (part.parameters.empty()) return out;
  finish_gradients(part.parameters, part.tp);
  const Axis ep = are_of_expert(part.parameters) ? Axis() : part.ep;  // else it runs on all ranks
  average_experts(part.parameters, ep);
  for (const auto& p : part.parameters) {
    out.push_back(quantity_of(Of::kGradient, *p, gradient_of(*p)));
  }
  const double norm = norm_of(settings, part.parameters, part.tp, ep);
  out.push_back({.of = Of::kNorm,
                 .local = at::scalar_tensor(norm, at::kDouble),
                 .terms = num_elements(part.parameters)});
  return out;
}

}  // namespace cleave::verifying
