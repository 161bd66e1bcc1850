#include "cleave/parallel/flat_shards.h"

#include <algorithm>
#include <utility>

#include <ATen/ATen.h>
#include <c10/core/ScalarType.h>

#include "cleave/layout/shard_geometry.h"
#include "cleave/nn/gradient_state.h"

namespace cleave::inline parallel {
namespace {

/// The numbers in memory of this rank's part of a parameter.
int64_t local_numel(const Parameter& p) {
  return c10::multiply_integers(p.use_shape());
}

/// The elements that a range of these numbers holds.
Range elements_of(const Parameter& p, const Range& stored) {
  if (!p.is_nf4()) return stored;
  const int64_t count = c10::multiply_integers(p.local_shape());
  return {std::min(2 * stored.begin, count), std::min(2 * stored.end, count)};
}

}  // namespace

at::ScalarType read_type(const Parameter& p, const ShardPrecision& precision) {
  if (!p.leaf().defined()) return precision.param;
  const at::ScalarType type = p.leaf().scalar_type();
  return c10::promoteTypes(type, precision.param) == precision.param ? type : precision.param;
}

void check_leaf_types(const Parameters& parameters, const ShardPrecision& precision) {
  if (precision.param == at::kDouble || precision.reduce == at::kDouble) return;
  for (const auto& p : parameters) {
    if (p->is_frozen() || !p->leaf().defined()) continue;
    CLEAVE_CHECK(p->leaf().scalar_type() != at::kDouble, Code::kUsage, p->name(),
                 " is in fp64, and the precision has the types ", precision.param, " and ",
                 precision.reduce,
                 ", to which weights and gradients would be rounded; set .param "
                 "and .reduce of .precision to at::kDouble");
  }
}

FlatShards::FlatShards(Parameters parameters, Axis shard, Axis replicate)
    : parameters_(std::move(parameters)),
      shard_(std::move(shard)),
      replicate_(std::move(replicate)) {
  for (const auto& p : parameters_) {
    numel_ += local_numel(*p);
    if (p->axis().size() > 1) tp_ = p->axis();
  }
  for (int r = 0; r < shard_.size(); ++r)
    widths_.push_back(flat_shard(numel_, r, shard_.size()).size());
  if (shard_.size() == 1) return;
  const Range mine = flat_shard(numel_, shard_.rank(), shard_.size());
  int64_t begin = 0;
  for (const auto& p : parameters_) {
    const Range part = common(mine, {begin, begin + local_numel(*p)});
    const int64_t at = part.size() > 0 ? part.begin - begin : 0;
    p->shard_flat(shard_, elements_of(*p, {at, at + part.size()}));
    begin += local_numel(*p);
  }
}

Work FlatShards::start_gather(at::ScalarType type) const {
  const at::NoGradGuard no_grad;
  std::vector<Tensor> mine;
  for (const auto& p : parameters_) mine.push_back(p->leaf().detach().flatten().to(type));
  return start_all_gather(shard_, at::cat(mine), widths_, "sharded weights");
}

std::vector<Tensor> FlatShards::parts_of(const Tensor& buffer) const {
  std::vector<Tensor> parts;
  int64_t begin = buffer.storage_offset();
  for (const auto& p : parameters_) {
    const auto shape = p->use_shape();
    // Not a view: autograd must not treat the parts of a buffer as versions of one tensor.
    parts.push_back(at::empty({0}, buffer.options())
                        .set_(buffer.storage(), begin, shape, at::detail::defaultStrides(shape)));
    begin += local_numel(*p);
  }
  return parts;
}

GradientReduction FlatShards::start_reduce(std::vector<Tensor> gradients,
                                           const ShardPrecision& precision) const {
  const at::NoGradGuard no_grad;
  const at::ScalarType type = precision.reduce, sent = precision.sent_type();
  const auto options = parameters_[0]->leaf().options().dtype(type).requires_grad(false);
  const bool is_single = shard_.size() * replicate_.size() == 1;
  const at::ScalarType narrow = is_single ? at::kBFloat16 : sent;  // stays as it is
  for (size_t i = 0; i < gradients.size(); ++i) {
    Tensor& g = gradients[i];
    const Parameter& p = *parameters_[i];
    if (!g.defined()) {
      g = at::zeros(p.local_shape(), options);
    } else if (p.gradient_is_partial() || g.scalar_type() != narrow) {
      g = g.to(type);  // to sum it, or to unscale an fp16 gradient
    }
  }
  complete_over_tp(parameters_, gradients, tp_);
  GradientReduction reduction;
  if (is_single) {
    reduction.complete_ = std::move(gradients);
    return reduction;
  }
  for (Tensor& g : gradients) g = g.reshape(-1).to(sent);
  const Tensor flat = at::cat(gradients);
  gradients.clear();
  reduction.work_ = shard_.size() > 1
                        ? start_reduce_scatter(shard_, flat, widths_, "gradients to shards")
                        : start_all_reduce(replicate_, flat, "gradients over dp");
  return reduction;
}

void FlatShards::record_reduced() const {
  for (const auto& p : parameters_) {
    record_scaled(*p);
    for (const Axis& axis : {tp_, shard_, replicate_}) record_sum(*p, axis);
  }
}

std::vector<Tensor> FlatShards::finish_reduce(GradientReduction& reduction) const {
  const at::NoGradGuard no_grad;
  std::vector<Tensor> out = std::exchange(reduction.complete_, {});
  if (out.empty()) {
    Tensor mine = reduction.work_.wait();
    if (shard_.size() > 1) {
      mine = replicate_.all_reduce(mine, "gradients of shards over replicas");
    }
    mine = mine.to(parameters_[0]->leaf().scalar_type());
    int64_t at = 0;
    for (const auto& p : parameters_) {
      out.push_back(mine.narrow(0, at, p->leaf().numel()));
      at += p->leaf().numel();
    }
  }
  for (size_t i = 0; i < out.size(); ++i) {
    const Tensor& leaf = parameters_[i]->leaf();
    out[i] = out[i].view(leaf.sizes());
    if (out[i].scalar_type() != at::kBFloat16) out[i] = out[i].to(leaf.scalar_type());
  }
  return out;
}

}  // namespace cleave::inline parallel
