#pragma once
#include <vector>

#include "cleave/mesh/work.h"
#include "cleave/parallel/gradients.h"

namespace cleave {

/// How sharded weights are read and their gradients summed. PyTorch's MixedPrecisionPolicy.
struct ShardPrecision {
  at::ScalarType param = at::kFloat;   ///< of the gathered weights: forward and backward
  at::ScalarType reduce = at::kFloat;  ///< gradients are summed in it
};

class FlatShards;

/// Gradients of leaves on their way over data-parallel ranks.
class Reduction {
 public:
  /// Awaits them: one of each leaf's sizes, in the order of the parameters, and of its type, or
  /// bf16 where that was the whole sum. Once.
  [[nodiscard]] std::vector<Tensor> finish();
  [[nodiscard]] bool is_under_way() const { return of_ != nullptr; }

 private:
  friend class FlatShards;
  const FlatShards* of_ = nullptr;
  Work work_;
  std::vector<Tensor> complete_;  // where there is no other rank
};

/// Parameters whose leaves are cut over data-parallel ranks as one flat run of elements.
///
/// The local parts of the parameters, flattened and put one after the other, are cut exactly (no
/// padding) over the ranks of `shard`; a parameter's leaf is what of it falls into this rank's cut,
/// possibly nothing. Over one rank leaves stay as they are. Optimizers, norms and checkpoints work
/// on leaves and know of no group.
class FlatShards {
 public:
  /// Cuts the parameters' leaves, with or without memory. `replicate` has the ranks with copies of
  /// the same cut (HSDP, or plain data parallelism); one rank where there are none.
  FlatShards(Parameters parameters, Axis shard, Axis replicate = {});

  [[nodiscard]] const Parameters& parameters() const { return parameters_; }
  [[nodiscard]] int64_t numel() const { return numel_; }  ///< of the local parts
  /// Whether leaves are parts: there are other ranks to shard over.
  [[nodiscard]] bool is_sharded() const { return shard_.size() > 1; }
  /// Records that the leaves have gradients that start_reduce summed (parallel/gradient_state.h).
  void record_reduced() const;

  /// The local parts of all parameters, one after the other: [numel], of `type`. Collective.
  [[nodiscard]] Work start_gather(at::ScalarType type) const;
  /// The places of the parameters in such a buffer, as fresh tensors that share its memory.
  [[nodiscard]] std::vector<Tensor> parts_of(const Tensor& buffer) const;
  /// From gradients of the local parts (undefined counts as zeros) to those of the leaves: parts
  /// are completed over tp, then summed over `shard` and `replicate`, in `type`. Collective. The
  /// reduction ends before this does.
  [[nodiscard]] Reduction start_reduce(std::vector<Tensor> gradients, at::ScalarType type) const;

 private:
  friend class Reduction;
  Parameters parameters_;
  Axis shard_, replicate_, tp_;
  int64_t numel_ = 0;
  std::vector<int64_t> widths_;  // of the cut, by rank
};

}  // namespace cleave
