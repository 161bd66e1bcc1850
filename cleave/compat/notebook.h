#pragma once
#include "cleave/compat/nxd.h"
#include "cleave/nn/attention.h"
#include "cleave/nn/mlp.h"

/// The names of the DLO-JZ course's notebook on tensor parallelism, on plain tensors;
/// docs/notebook-s4.md walks through it. Layers start and train as those of nxd.h do
/// (move_model_to_device, clip_grad_norm, optimizer_step).
///
/// All work on the groups of this rank's thread that init made; before it each throws
/// Error(kUsage). Layers take and give what is the same on every rank of the group; sizes need not
/// divide by the number of ranks.
namespace cleave::notebook {

using cleave::dp_grp;
using cleave::tp_degree;
using cleave::tp_grp;
using cleave::tp_rank;

/// Makes tp_grp, `tp` ranks that share a model, and dp_grp, those that hold copies of it. tp = 0:
/// the whole world shares one. Throws Error(kShape) when tp does not divide the world.
inline void init(World& world, int tp = 0) {
  initialize_model_parallel(world, {.tensor_model_parallel_size = tp == 0 ? world.size() : tp});
}

/// The paper's f, into split work: x as it is (its memory), the gradient summed over the ranks.
struct Duplication {
  /// The value; x and it have one shape.
  static Tensor apply(const Tensor& x) { return nxd::copy_to_tensor_model_parallel_region(x); }
};

/// The paper's g, out of split work: the sum over the ranks, the gradient as it is.
struct AllReduce {
  /// The value; x and it have one shape.
  static Tensor apply(const Tensor& x) { return nxd::reduce_from_tensor_model_parallel_region(x); }
};

/// The ranks' pieces of the last dim joined, the gradient cut. Pieces may be uneven.
struct AllGather {
  /// x [.., piece], result [.., whole].
  static Tensor apply(const Tensor& x) { return nxd::gather_from_tensor_model_parallel_region(x); }
};

/// A matrix whose outputs are cut: Duplication, this rank's columns, AllGather.
///
///   x [.., t, in]   weight [out/tp, in]   result [.., t, out]
class ColWiseLinear : public nxd::ColumnParallelLinear {
 public:
  ColWiseLinear(int64_t in_features, int64_t out_features, bool bias = false)
      : ColumnParallelLinear(in_features, out_features, {.bias = bias}) {}
};

/// A table whose columns are cut, joined behind the lookup.
///
///   ids [B, T] int64   weight [V, dim/tp]   result [B, T, dim]
class Embedding : public nxd::ParallelEmbedding {
 public:
  Embedding(int64_t vocab_size, int64_t dim)
      : ParallelEmbedding(vocab_size, dim, {.shard_across_embedding = true}) {}
};

/// Attention of which each rank has whole heads: Duplication, this rank's columns of three
/// matrices, its heads, its rows of the last matrix, AllReduce.
///
///   x [B, T, dim]   result [B, T, dim]
///
/// context.key_mask [B, T] says which tokens are real. Throws Error(kShape) when heads do not
/// divide dim or are fewer than ranks.
class MultiHeadSelfAttention : public LayerGroup {
 public:
  MultiHeadSelfAttention(int64_t dim, int64_t heads, bool bias = false);
  /// The call on plain tensors.
  Tensor operator()(const Tensor& x, const Context& context = {});

 private:
  nxd::ColumnParallelLinear query_, key_, value_;
  HeadAttention attention_;
  nxd::RowParallelLinear output_;
};

struct FeedForwardOptions {
  int64_t in_features = 0;
  int64_t hidden_features = 0;
  int64_t out_features = 0;
  Activation activation = Activation::kGelu;
  bool bias = false;
};

/// Two matrices and an activation, each matrix cut by its outputs: two AllGathers.
///
///   x [.., t, in]   result [.., t, out]
class FeedForwardBlock : public LayerGroup {
 public:
  explicit FeedForwardBlock(const FeedForwardOptions& options);
  /// The call on plain tensors.
  Tensor operator()(const Tensor& x);

 private:
  Activation activation_;
  ColWiseLinear first_, second_;
};

/// The same function, the first matrix cut by its outputs and the second by its inputs: what lies
/// between stays where it was made, and one AllReduce is left.
class ColRowLinearPair : public LayerGroup {
 public:
  explicit ColRowLinearPair(const FeedForwardOptions& options);
  /// The call on plain tensors.
  Tensor operator()(const Tensor& x);

 private:
  Activation activation_;
  nxd::ColumnParallelLinear first_;
  nxd::RowParallelLinear second_;
};

}  // namespace cleave::notebook
