#pragma once
#include "cleave/nn/layer.h"
#include "cleave/parallel/flat_shards.h"

namespace cleave::inline parallel {

/// Options of fully_shard.
struct FsdpOptions {
  ShardPrecision precision{};
  bool reshard_after_forward = true;  ///< free gathered weights until backward needs them
  Axis replicate{};                   ///< HSDP: the ranks with copies of the same shards
};

/// Shards the leaves of a layer's parameters over data-parallel ranks (FSDP, ZeRO-3). Each call
/// gathers the weights just before forward, frees them after it, and gathers them again for
/// backward. Gradients are summed into shards while backward runs on; the leaves have them when
/// backward returns.
///
/// So each call and each backward is collective over dp: all ranks must run the same number of
/// micro-batches. Otherwise they end with Error(kDesync), which names what each of them called.
///
/// Call it on inner layers first: a layer takes the parameters below it that are not sharded yet.
/// Call parallelize_module() before it to combine it with tensor parallelism. Call recompute()
/// before it and on the same layers: an inner layer that recomputes by itself would free weights
/// that its neighbours still need, which is Error(kUsage).
///
/// A tied parameter, which a layer reads but an earlier one owns, is gathered in both calls.
void fully_shard(Layer& layer, const Axis& dp, const FsdpOptions& options = {});

/// The same for several layers that are always called in this order, starting with the first. While
/// one layer computes, the weights of the next one are gathered; in backward, those of the previous
/// one. So the weights of two layers are held at the same time.
void fully_shard(const std::vector<Layer*>& in_order, const Axis& dp,
                 const FsdpOptions& options = {});

}  // namespace cleave::inline parallel
