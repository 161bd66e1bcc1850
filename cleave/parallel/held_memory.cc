#include "cleave/parallel/held_memory.h"

#include <algorithm>

#include <ATen/ATen.h>

namespace cleave::inline parallel {
namespace {

int64_t bytes_of(const Tensor& t) {
  return t.defined() ? static_cast<int64_t>(t.nbytes()) : 0;
}

/// Bytes of the gradient of a leaf. Gradients of other tensors are temporary and count as 0.
int64_t gradient_bytes(const Tensor& t) {
  return t.defined() && t.is_leaf() ? bytes_of(t.grad()) : 0;
}

}  // namespace

KindBytes held_bytes(const Parameters& parameters, const Optimizer* optimizer,
                     DataSharding sharding) {
  KindBytes bytes{};
  for (const auto& p : parameters) {
    const Tensor& leaf = p->leaf();
    bytes[kWeightBytes] += bytes_of(leaf) + bytes_of(p->scales());
    bytes[kGradientBytes] += gradient_bytes(leaf);
    const Tensor use = p->other_use();
    if (!use.defined() || !leaf.defined()) continue;
    bytes[kGradientBytes] += gradient_bytes(use);
    const bool is_gathered = sharding == DataSharding::kFsdp && p->is_flat();
    const int64_t shared = use.is_alias_of(leaf) ? bytes_of(leaf) : 0;
    bytes[is_gathered ? kGatheredBytes : kWeightBytes] +=
        std::max<int64_t>(0, bytes_of(use) - shared);
  }
  if (optimizer == nullptr) return bytes;
  for (const Optimizer::State& s : optimizer->states()) {
    bytes[kMomentBytes] += bytes_of(s.exp_avg) + bytes_of(s.exp_avg_sq) + bytes_of(s.ema);
  }
  return bytes;
}

}  // namespace cleave::inline parallel
