#pragma once
#include <memory>
#include <vector>

#include "cleave/parallel/gradients.h"

namespace cleave {

/// How sharded weights are read and their gradients summed. PyTorch's MixedPrecisionPolicy.
struct ShardPrecision {
  at::ScalarType param = at::kFloat;   ///< of the gathered weights: forward and backward
  at::ScalarType reduce = at::kFloat;  ///< gradients are summed in it
};

/// Parameters whose leaves are cut over data-parallel ranks as one flat run of elements.
///
/// The local parts of the parameters, flattened and put one after the other, are cut exactly (no
/// padding) over the ranks of `shard`; a parameter's leaf is what of it falls into this rank's cut,
/// possibly nothing. Optimizers, norms and checkpoints work on leaves and know of no group.
class FlatShards {
 public:
  /// Cuts the parameters' leaves, with or without memory. `replicate` has the ranks with copies of
  /// the same cut (HSDP); one rank where there are none.
  FlatShards(Parameters parameters, Axis shard, Axis replicate = {});

  [[nodiscard]] const Parameters& parameters() const { return parameters_; }
  [[nodiscard]] int64_t numel() const { return numel_; }  ///< of the local parts

  /// The local parts of all parameters, one after the other: [numel], of `type`. Collective.
  [[nodiscard]] Tensor gather(at::ScalarType type) const;
  /// The places of the parameters in such a buffer, as fresh tensors that share its memory.
  [[nodiscard]] std::vector<Tensor> parts_of(const Tensor& buffer) const;
  /// From gradients of the local parts (undefined counts as zeros) to those of the leaves: parts
  /// are completed over tp, then summed over `shard` and `replicate`, in `type`. Collective. The
  /// results have the leaves' type.
  [[nodiscard]] std::vector<Tensor> reduce(std::vector<Tensor> gradients,
                                           at::ScalarType type) const;

 private:
  Parameters parameters_;
  Axis shard_, replicate_, tp_;
  int64_t numel_ = 0;
  std::vector<int64_t> widths_;  // of the cut, by rank
};

/// ZeRO-1: leaves and optimizer state are cut over data-parallel ranks, the weights that forward
/// reads stay whole on each. Gradients collect in whole tensors over the micro-batches, then are
/// reduce-scattered once.
class Zero1 {
 public:
  /// Cuts the leaves. `parameters` are complete on this rank's part; `alone` are those whose
  /// gradients are still to be added to another rank's (tied across pipeline stages): each is cut
  /// by itself, so that both ranks cut alike.
  Zero1(const Parameters& parameters, const Parameters& alone, const Axis& dp,
        ShardPrecision precision);

  /// Gathers the weights that forward reads; after the leaves were filled or stepped. Collective.
  void gather_weights();
  /// Leaves' gradients from those of the whole weights, which are freed. Collective.
  void reduce_gradients();

 private:
  std::vector<std::unique_ptr<FlatShards>> buckets_;
  ShardPrecision precision_;
};

}  // namespace cleave
