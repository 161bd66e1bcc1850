#pragma once
#include "cleave/nn/layer.h"
#include "cleave/parallel/flat_shards.h"

namespace cleave {

/// How fully_shard treats a layer.
struct FsdpOptions {
  ShardPrecision precision{};
  bool reshard_after_forward = true;  ///< free gathered weights until backward needs them
  Axis replicate{};                   ///< HSDP: the ranks with copies of the same shards
};

/// Cuts the leaves of a layer's parameters over data-parallel ranks (FSDP, ZeRO-3): each call
/// gathers the weights just before forward, frees them after, gathers them again for backward, and
/// sums gradients straight into shards, beside the backward of what comes next; leaves have them
/// when backward returns. Applied to inner layers first, then outwards: a layer
/// takes what is below it and not sharded yet. On top of tensor parallelism on the same parameters
/// (parallelize_module before). recompute() comes before and goes on the same layers: a layer
/// inside that recomputes alone would end with the weights that its neighbours still need, which is
/// Error(kUsage).
///
/// A parameter that a layer reads but an earlier one owns (tied) is gathered in both calls.
void fully_shard(Layer& layer, const Axis& dp, const FsdpOptions& options = {});

/// The same for each of several layers that are always called in this order, from the first one on:
/// while one computes, the weights of the next one are gathered, in backward those of the one
/// before. So the weights of two of them are held at once.
void fully_shard(const std::vector<Layer*>& in_order, const Axis& dp,
                 const FsdpOptions& options = {});

}  // namespace cleave
