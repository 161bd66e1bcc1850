#pragma once
#include <optional>
#include <vector>

#include "cleave/mesh/work.h"
#include "cleave/parallel/gradients.h"

namespace cleave::inline parallel {

/// How sharded weights are read and their gradients summed. PyTorch's MixedPrecisionPolicy.
struct ShardPrecision {
  /// Type of the weights in forward and backward; that of the leaves if these are narrower.
  at::ScalarType param = at::kFloat;
  at::ScalarType reduce = at::kFloat;  ///< type of gradient sums
  /// Type in which gradients pass between data-parallel ranks; nothing: `reduce`. With bf16, each
  /// rank rounds what it sends, sums are made in fp32, and the sum is rounded once.
  std::optional<at::ScalarType> sent{};

  [[nodiscard]] at::ScalarType sent_type() const { return sent.value_or(reduce); }
};

/// The type in which forward reads a parameter: precision.param, but never wider than the leaf,
/// since a wider copy would only cost memory and time.
at::ScalarType read_type(const Parameter& p, const ShardPrecision& precision);

/// Throws Error(kUsage) if a leaf is in fp64 and no type of `precision` is: weights and gradients
/// would silently be rounded.
void check_leaf_types(const Parameters& parameters, const ShardPrecision& precision);

/// A sum of leaves' gradients over data-parallel ranks, which FlatShards::start_reduce has started.
class GradientReduction {
 public:
  [[nodiscard]] bool is_pending() const { return work_.is_pending() || !complete_.empty(); }

 private:
  friend class FlatShards;
  Work work_;
  std::vector<Tensor> complete_;  // the result, if there is one rank
};

/// Parameters whose leaves are sharded over data-parallel ranks as one flat buffer.
///
/// The parameters' local parts are flattened, concatenated and divided over the ranks of `shard`
/// without padding. A parameter's leaf is the part of it in this rank's shard, possibly empty. With
/// one rank the leaves do not change. Optimizers, norms and checkpoints see only the leaves.
class FlatShards {
 public:
  /// Shards the parameters' leaves; they may be unallocated. `replicate`: the ranks with copies of
  /// the same shard (HSDP, or plain data parallelism); one rank if there are none.
  FlatShards(Parameters parameters, Axis shard, Axis replicate = {});

  [[nodiscard]] const Parameters& parameters() const { return parameters_; }
  [[nodiscard]] int64_t numel() const { return numel_; }  ///< of the local parts
  /// Whether leaves are shards: `shard` has more than one rank.
  [[nodiscard]] bool is_sharded() const { return shard_.size() > 1; }
  /// Records that the leaves have gradients that start_reduce summed (nn/gradient_state.h).
  void record_reduced() const;

  /// Gathers the local parts of all parameters into one buffer [numel] of `type`. Collective.
  [[nodiscard]] Work start_gather(at::ScalarType type) const;
  /// The parameters' parts of such a buffer: tensors that share its memory but are not views.
  [[nodiscard]] std::vector<Tensor> parts_of(const Tensor& buffer) const;
  /// Starts the sums that turn gradients of the local parts (undefined counts as zeros) into those
  /// of the leaves: over tp where they are partial, in precision.reduce, then over `shard` and
  /// `replicate`, in precision.sent_type(). Collective.
  [[nodiscard]] GradientReduction start_reduce(std::vector<Tensor> gradients,
                                               const ShardPrecision& precision) const;
  /// Waits for the sums that start_reduce of this object started; they are then no longer pending.
  /// Returns a tensor of each leaf's sizes, in the order of the parameters, in the leaf's type, or
  /// in bf16 if nothing was added to a bf16 gradient.
  [[nodiscard]] std::vector<Tensor> finish_reduce(GradientReduction& reduction) const;

 private:
  Parameters parameters_;
  Axis shard_, replicate_, tp_;
  int64_t numel_ = 0;
  std::vector<int64_t> widths_;  // elements of each rank's shard
};

}  // namespace cleave::inline parallel
