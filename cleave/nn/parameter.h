#pragma once
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "cleave/layout/dtensor.h"
#include "cleave/nn/parameter_spec.h"

namespace cleave::inline nn {

/// A weight of a model: what it is, which elements this rank holds, and their memory.
///
/// It exists without memory first: plans set its placement, then materialize() or loading a
/// checkpoint allocates and fills only this rank's part.
class Parameter : public ParameterSharding {
 public:
  using ParameterSharding::ParameterSharding;

  /// Shards `dim` over the axis. If there is memory already, the leaf stays the same tensor object
  /// and keeps this rank's part, so an optimizer that holds it stays valid. A second call with the
  /// same split does nothing. Throws Error(kShape) for another split, Error(kUsage) when the leaf
  /// has a gradient or is flat, or the memory is in nf4.
  void shard(const Axis& axis, int dim, const SplitPtr& split);
  /// Replaces the split of a sharded parameter. Throws Error(kUsage) when there is memory already
  /// or it is not sharded, Error(kShape) for a split of another size or number of ranks.
  void change_split(const SplitPtr& split);

  /// Makes it kFrozen; its memory will have the type `compute`, in which forward reads it. Throws
  /// Error(kUsage) when there is memory already.
  void freeze(at::ScalarType compute);
  /// Makes a matrix kFrozen; its memory will be in a form of fewer bits (QuantizedWeight). use()
  /// gives the values of that form. Fill it with fill_quantized() (nn/quantized_leaf.h). Throws as
  /// freeze() does.
  void freeze_quantized(const Quantization& quantization);
  /// This rank's part as forward reads it. Its scales are whole on every data-parallel rank. Only
  /// if is_quantized(); throws as use() does.
  [[nodiscard]] QuantizedWeight quantized() const;
  /// The scales and blocks of quantized(); undefined until there is memory.
  [[nodiscard]] const Tensor& scales() const { return scales_; }
  [[nodiscard]] const Tensor& block_of() const { return block_of_; }

  /// Shards the leaf over data-parallel ranks, which would otherwise hold the same (FSDP, ZeRO-1).
  /// The leaf becomes the elements `range` of this rank's part, flattened row-major. Existing
  /// memory is sharded too. Throws Error(kUsage) when it is sharded differently already, or the
  /// memory is in nf4.
  void shard_flat(const Axis& data, Range range);

  /// The tensor that the optimizer updates; undefined until there is memory.
  [[nodiscard]] const Tensor& leaf() const { return leaf_; }
  /// Sets the memory. `leaf` must have stored_shape(); if floating-point and not frozen, it will
  /// require grad, unless the leaf before it did not (leaf().set_requires_grad(false)).
  /// Throws Error(kShape).
  void set_leaf(const Tensor& leaf);
  /// set_leaf() of a quantized parameter. `values` has stored_shape(); `scales` and `block_of` are
  /// those of quantized().
  void set_quantized(const Tensor& values, const Tensor& scales, const Tensor& block_of = {});
  /// Frees the memory, when inference uses another form of the weight (int8, panels).
  void drop() {
    leaf_.reset();
    set_use({});
  }
  /// Whether training updates it now: it is not frozen, and nobody called
  /// leaf().set_requires_grad(false).
  [[nodiscard]] bool is_trained() const {
    return !is_frozen() && (!leaf_.defined() || leaf_.requires_grad());
  }
  /// The tensor that forward reads: the leaf, or the tensor of set_use(). Throws Error(kUsage) when
  /// there is no memory, the parameter is sharded by FSDP and not gathered, or the leaf has changed
  /// since a copy of it was made.
  [[nodiscard]] const Tensor& use() const;
  /// Whether use() would succeed.
  [[nodiscard]] bool is_readable() const { return use_.defined(); }
  /// Sets the tensor that use() returns, e.g. FSDP's gathered weight; undefined removes it.
  /// `gradients`: where backward adds its gradients, if not in grad().
  void set_use(const Tensor& use, std::shared_ptr<Tensor> gradients = nullptr) {
    use_ = use;
    use_gradients_ = std::move(gradients);
    is_copy_ = false;
  }
  /// set_use() with a copy of the leaf's values. From now on use() lets it require grad whenever
  /// the leaf does, so that a weight that is not trained now collects no gradient.
  void set_copy(const Tensor& copy, std::shared_ptr<Tensor> gradients) {
    set_use(copy, std::move(gradients));
    is_copy_ = true;
    note_copied();
  }
  /// The copy of set_copy() has the leaf's values again.
  void note_copied();
  /// The tensor that forward reads instead of the leaf; undefined if it reads the leaf, or cannot
  /// read now.
  [[nodiscard]] Tensor other_use() const { return use_.is_same(leaf_) ? Tensor() : use_; }
  /// Frees the gradient of the leaf, and that which backward left for the tensor of set_use().
  void drop_gradients();

  /// A layer reports that it uses this replicated parameter on `activation`. On a Shard or Fanout
  /// activation the gradient is a partial sum, otherwise it is whole. Throws Error(kShape) when
  /// both occur. Calls without a gradient of the parameter (in evaluation, or frozen) do not count.
  void used_in(const DTensor& activation);
  /// Whether this rank's gradient is a partial sum, to be summed over the axis after backward.
  [[nodiscard]] bool gradient_is_partial() const;

 private:
  /// Refuses to shard memory in which two elements share a byte.
  void check_not_packed() const;

  std::optional<bool> used_in_split_work_;
  Tensor leaf_, use_;
  std::shared_ptr<Tensor> use_gradients_;  // see set_use
  bool is_copy_ = false;                   // see set_copy
  uint32_t copied_version_ = 0;            // of the leaf
  Tensor scales_, block_of_;               // of quantized()
};

/// The parameters of a model, each once.
using Parameters = std::vector<std::shared_ptr<Parameter>>;

/// The parameters that training updates, now or later: all but the frozen ones.
Parameters trained_of(const Parameters& parameters);

}  // namespace cleave::inline nn
