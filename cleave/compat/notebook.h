#pragma once
#include "cleave/compat/nxd.h"
#include "cleave/nn/attention.h"
#include "cleave/nn/mlp.h"

/// The DLO-JZ course's notebook on tensor parallelism under its names, on plain tensors;
/// docs/notebook-s4.md walks through it. Layers are initialized and trained like those of nxd.h
/// (move_model_to_device, clip_grad_norm, optimizer_step).
///
/// All functions use the groups that init made on this rank's thread, and throw Error(kUsage)
/// before init. Inputs and outputs of layers are the same on every rank of the group; sizes need
/// not be divisible by the number of ranks. A layer's dtype is that of its weights, and so of its
/// inputs; move_model_to_device does not change it.
namespace cleave::notebook {

using cleave::dp_grp;
using cleave::tp_degree;
using cleave::tp_grp;
using cleave::tp_rank;

/// Makes tp_grp, the `tp` ranks that a model is sharded over, and dp_grp, the ranks with copies of
/// the same shards. tp = 0: all ranks are one tp_grp. Throws Error(kShape) if tp does not divide
/// the world.
inline void init(World& world, int tp = 0) {
  initialize_model_parallel(world, {.tensor_model_parallel_size = tp == 0 ? world.size() : tp});
}

/// The paper's f, before sharded work: returns x unchanged (the same memory); sums the gradient
/// over the ranks.
struct Duplication {
  /// Result and x have the same shape.
  static Tensor apply(const Tensor& x) { return nxd::copy_to_tensor_model_parallel_region(x); }
};

/// The paper's g, after sharded work: sums x over the ranks; passes the gradient unchanged.
struct AllReduce {
  /// Result and x have the same shape.
  static Tensor apply(const Tensor& x) { return nxd::reduce_from_tensor_model_parallel_region(x); }
};

/// Gathers the ranks' shards along the last dim; shards the gradient. Shards may be uneven.
struct AllGather {
  /// x [.., shard], result [.., whole].
  static Tensor apply(const Tensor& x) { return nxd::gather_from_tensor_model_parallel_region(x); }
};

/// A linear layer sharded by output features: Duplication, this rank's columns, AllGather.
///
///   x [.., t, in]   weight [out/tp, in]   result [.., t, out]
class ColWiseLinear : public nxd::ColumnParallelLinear {
 public:
  ColWiseLinear(int64_t in_features, int64_t out_features, bool bias = false,
                at::ScalarType dtype = at::kFloat)
      : ColumnParallelLinear(in_features, out_features, {.bias = bias, .dtype = dtype}) {}
};

/// A table sharded by columns, which are gathered after the lookup.
///
///   ids [B, T] int64   weight [V, dim/tp]   result [B, T, dim]
class Embedding : public nxd::ParallelEmbedding {
 public:
  Embedding(int64_t vocab_size, int64_t dim, at::ScalarType dtype = at::kFloat)
      : ParallelEmbedding(vocab_size, dim, {.dtype = dtype, .shard_across_embedding = true}) {}
};

/// Attention sharded by whole heads: Duplication, this rank's columns of three matrices, its heads,
/// its rows of the last matrix, AllReduce.
///
///   x [B, T, dim]   result [B, T, dim]
///
/// context.key_mask [B, T] is true for real tokens. Throws Error(kShape) if the number of heads
/// does not divide dim or is less than the number of ranks.
class MultiHeadSelfAttention : public LayerGroup {
 public:
  MultiHeadSelfAttention(int64_t dim, int64_t heads, bool bias = false,
                         at::ScalarType dtype = at::kFloat);
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
  at::ScalarType dtype = at::kFloat;  ///< of the weights
};

/// Two linear layers with an activation, both sharded by output features: two AllGathers.
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

/// The same function, the first layer sharded by output features and the second by input features:
/// the hidden activations stay sharded, and only one AllReduce is needed.
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
