#include "cleave/parallel/flat_shards.h"

#include <numeric>

#include <ATen/ATen.h>

#include "cleave/layout/flat.h"

namespace cleave {
namespace {

constexpr int64_t kBucketBytes = int64_t{32} << 20;  // of whole weights in fp32

int64_t local_numel(const Parameter& p) {
  return c10::multiply_integers(p.local_shape());
}

}  // namespace

FlatShards::FlatShards(Parameters parameters, Axis shard, Axis replicate)
    : parameters_(std::move(parameters)),
      shard_(std::move(shard)),
      replicate_(std::move(replicate)) {
  for (const auto& p : parameters_) {
    numel_ += local_numel(*p);
    if (p->axis().size() > 1) tp_ = p->axis();
  }
  for (int r = 0; r < shard_.size(); ++r)
    widths_.push_back(flat_cut(numel_, r, shard_.size()).size());
  const Range mine = flat_cut(numel_, shard_.rank(), shard_.size());
  int64_t begin = 0;
  for (const auto& p : parameters_) {
    const Range part = common(mine, {begin, begin + local_numel(*p)});
    const int64_t at = part.size() > 0 ? part.begin - begin : 0;
    p->shard_flat(shard_, {at, at + part.size()});
    begin += local_numel(*p);
  }
}

Tensor FlatShards::gather(at::ScalarType type) const {
  const at::NoGradGuard no_grad;
  std::vector<Tensor> mine;
  for (const auto& p : parameters_) mine.push_back(p->leaf().detach().to(type));
  return shard_.all_gather(at::cat(mine), 0, widths_, "sharded weights");
}

std::vector<Tensor> FlatShards::parts_of(const Tensor& buffer) const {
  std::vector<Tensor> parts;
  int64_t begin = buffer.storage_offset();
  for (const auto& p : parameters_) {
    const auto shape = p->local_shape();
    // Not a view: autograd must not take the parts of a buffer for versions of one tensor.
    parts.push_back(at::empty({0}, buffer.options())
                        .set_(buffer.storage(), begin, shape, at::detail::defaultStrides(shape)));
    begin += local_numel(*p);
  }
  return parts;
}

std::vector<Tensor> FlatShards::reduce(std::vector<Tensor> gradients, at::ScalarType type) const {
  const at::NoGradGuard no_grad;
  const auto options = parameters_[0]->leaf().options().dtype(type).requires_grad(false);
  for (size_t i = 0; i < gradients.size(); ++i) {
    Tensor& g = gradients[i];
    g = g.defined() ? g.to(type) : at::zeros(parameters_[i]->local_shape(), options);
  }
  complete_over_tp(parameters_, gradients, tp_);
  std::vector<Tensor> flat;
  for (const Tensor& g : gradients) flat.push_back(g.reshape(-1));
  Tensor mine = shard_.reduce_scatter(at::cat(flat), 0, widths_, "gradients to shards");
  mine = replicate_.all_reduce(mine, "gradients of shards over replicas");
  std::vector<Tensor> out;
  int64_t at = 0;
  for (const auto& p : parameters_) {
    out.push_back(mine.narrow(0, at, p->leaf().numel()).to(p->leaf().scalar_type()));
    at += p->leaf().numel();
  }
  return out;
}

Zero1::Zero1(const Parameters& parameters, const Parameters& alone, const Axis& dp,
             ShardPrecision precision)
    : precision_(precision) {
  Parameters bucket;
  int64_t bytes = 0;
  const auto close = [&] {
    if (!bucket.empty()) buckets_.push_back(std::make_unique<FlatShards>(bucket, dp));
    bucket.clear();
    bytes = 0;
  };
  for (const auto& p : parameters) {
    bucket.push_back(p);
    bytes += 4 * local_numel(*p);
    if (bytes >= kBucketBytes) close();
  }
  close();
  for (const auto& p : alone) buckets_.push_back(std::make_unique<FlatShards>(Parameters{p}, dp));
}

void Zero1::gather_weights() {
  for (const auto& bucket : buckets_) {
    const Tensor buffer = bucket->gather(precision_.param);
    const std::vector<Tensor> parts = bucket->parts_of(buffer);
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < parts.size(); ++i) {
      Parameter& p = *bucket->parameters()[i];
      if (p.is_readable()) {
        p.use().detach().copy_(parts[i]);  // where the graph and the kernels know it
      } else {
        p.set_use(parts[i].clone().requires_grad_());
      }
    }
  }
}

void Zero1::reduce_gradients() {
  for (const auto& bucket : buckets_) {
    std::vector<Tensor> whole;
    for (const auto& p : bucket->parameters()) {
      whole.push_back(p->use().grad());
      p->use().mutable_grad().reset();
    }
    const std::vector<Tensor> reduced = bucket->reduce(std::move(whole), precision_.reduce);
    for (size_t i = 0; i < reduced.size(); ++i) {
      bucket->parameters()[i]->leaf().mutable_grad() = reduced[i];
    }
  }
}

}  // namespace cleave
