#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "cleave/layout/dtensor.h"

namespace cleave::inline nn {

/// Distribution of a parameter's initial values. Values are a function of (seed, name, global
/// element index), so they do not depend on the layout.
struct Init {
  enum class Kind : uint8_t { kNormal, kUniform, kConstant } kind = Kind::kNormal;
  double value = 0.02;    ///< standard deviation, the bound of [-bound, bound), or the constant
  int64_t zero_row = -1;  ///< row of dim 0 that starts as zeros; -1: none
  static Init normal(double standard_deviation) {
    return {.kind = Kind::kNormal, .value = standard_deviation};
  }
  static Init uniform(double bound) { return {.kind = Kind::kUniform, .value = bound}; }
  static Init constant(double value) { return {.kind = Kind::kConstant, .value = value}; }
};

/// A weight of a model: its whole shape, its placement, and this rank's tensors.
///
/// It exists without memory first: plans set its placement, then materialize() or loading a
/// checkpoint allocates and fills only this rank's part.
class Parameter {
 public:
  Parameter(std::vector<int64_t> shape, Init init) : shape_(std::move(shape)), init_(init) {}

  [[nodiscard]] const std::vector<int64_t>& shape() const { return shape_; }  ///< whole
  [[nodiscard]] int64_t numel() const;                                        ///< whole
  [[nodiscard]] const Init& init() const { return init_; }
  /// Full name as in Hugging Face files, e.g. "model.norm.weight". Set once by Layer::name_tree().
  [[nodiscard]] const std::string& name() const { return name_; }
  void set_name(const std::string& name) { name_ = name; }

  [[nodiscard]] const Placement& placement() const { return placement_; }  ///< Replicate or Shard
  [[nodiscard]] const Axis& axis() const { return axis_; }
  [[nodiscard]] bool is_split() const { return placement_.is_shard() && axis_.size() > 1; }

  /// Puts the parameter on an axis, whole on every rank.
  void replicate(const Axis& axis);
  /// Shards `dim` over the axis. If there is memory already, the leaf stays the same tensor object
  /// and keeps this rank's part, so an optimizer that holds it stays valid. A second call with the
  /// same split does nothing. Throws Error(kShape) for another split, Error(kUsage) when the leaf
  /// has a gradient or is flat.
  void shard(const Axis& axis, int dim, const SplitPtr& split);
  /// Replaces the split of a sharded parameter. Throws Error(kUsage) when there is memory already
  /// or it is not sharded, Error(kShape) for a split of another size or number of ranks.
  void change_split(const SplitPtr& split);

  /// Whether this rank uses it: its pipeline stages, and of experts its own. kOwned: yes. kCopy:
  /// yes, but an earlier stage owns it (tied weights) and writes it to files and counts it in
  /// norms. kNotOwned: no, so it gets no memory here.
  enum class Ownership : uint8_t { kOwned, kCopy, kNotOwned };
  void set_ownership(Ownership ownership) { ownership_ = ownership; }
  [[nodiscard]] Ownership ownership() const { return ownership_; }

  /// Expert parallelism: of the data-parallel ranks only `copies` have this parameter. `is_here`:
  /// this rank is one of them; if not, `copies` is unused.
  void set_copies(const Axis& copies, bool is_here) {
    copies_ = copies;
    is_here_ = is_here;
  }
  /// Those ranks; empty: all data-parallel ranks.
  [[nodiscard]] const std::optional<Axis>& copies() const { return copies_; }
  [[nodiscard]] bool is_here() const { return is_here_; }

  /// What training does with it. kTrained: updates it. kFrozen: only reads it, so it has no
  /// gradient, no optimizer state and no master weight. kAdapter: updates it, and it belongs to the
  /// adapter of a frozen model, not to the model's own files.
  enum class Role : uint8_t { kTrained, kFrozen, kAdapter };
  [[nodiscard]] bool is_frozen() const { return role_ == Role::kFrozen; }
  [[nodiscard]] bool is_adapter() const { return role_ == Role::kAdapter; }
  void set_adapter() { role_ = Role::kAdapter; }
  /// Whether forward reads it in the type of the leaf, also where it reads other weights in a
  /// narrower one: magnitudes, whose changes 16 bits would round away.
  [[nodiscard]] bool keeps_leaf_type() const { return keeps_leaf_type_; }
  void keep_leaf_type() { keeps_leaf_type_ = true; }
  /// Makes it kFrozen; its memory will have the type `compute`, in which forward reads it. Throws
  /// Error(kUsage) when there is memory already.
  void freeze(at::ScalarType compute);
  /// Makes a matrix kFrozen; its memory will be int8 with one scale for each index of `row_dim`,
  /// the dim of the layer's outputs (kernels/int8_weight.h). use() gives the int8 values. Fill it
  /// with fill_int8() (nn/int8_leaf.h). Throws as freeze() does.
  void freeze_int8(int row_dim);
  [[nodiscard]] bool is_int8() const { return int8_row_dim_.has_value(); }
  /// Only if is_int8().
  [[nodiscard]] int int8_row_dim() const { return int8_row_dim_.value(); }
  /// The scales of this rank's rows, whole on every data-parallel rank; undefined until there is
  /// memory. Only if is_int8().
  [[nodiscard]] const Tensor& scales() const { return scales_; }
  /// The type of its memory in a model whose trained weights have the type `trained`.
  [[nodiscard]] at::ScalarType leaf_type(at::ScalarType trained) const {
    return frozen_type_.value_or(trained);
  }

  [[nodiscard]] std::vector<int64_t> local_shape() const;
  /// This rank's ranges of dim split_dim(), and the part of them that it owns, i.e. writes to files
  /// and counts in norms. If it is not sharded: the whole of dim 0, owned by rank 0 of the axis. A
  /// kCopy or kNotOwned parameter owns nothing.
  [[nodiscard]] int64_t split_dim() const { return is_split() ? placement_.dim() : 0; }
  [[nodiscard]] std::vector<Range> ranges() const;
  [[nodiscard]] std::vector<Range> owned() const;

  /// Shards the leaf over data-parallel ranks, which would otherwise hold the same (FSDP, ZeRO-1).
  /// The leaf becomes the elements `range` of this rank's part, flattened row-major. Existing
  /// memory is sharded too. Throws Error(kUsage) when it is sharded differently already.
  void shard_flat(const Axis& data, Range range);
  [[nodiscard]] bool is_flat() const { return flat_.has_value(); }
  /// The range of the flattened part that this rank's leaf holds; all of it unless is_flat().
  [[nodiscard]] Range flat_range() const;
  /// The axis that a flat leaf is sharded over; the default axis (one rank) unless is_flat().
  [[nodiscard]] const Axis& data_axis() const { return data_axis_; }
  /// local_shape(), or one dim where the leaf is flat.
  [[nodiscard]] std::vector<int64_t> leaf_shape() const;
  /// This rank's leaf elements of a tensor of the whole shape, as a copy.
  [[nodiscard]] Tensor part_of(const Tensor& whole) const;

  /// The tensor that the optimizer updates; undefined until there is memory.
  [[nodiscard]] const Tensor& leaf() const { return leaf_; }
  /// Sets the memory. `leaf` must have leaf_shape(); if floating-point and not frozen, it will
  /// require grad.
  /// Throws Error(kShape).
  void set_leaf(const Tensor& leaf);
  /// set_leaf() of an int8 parameter. `scales`: [this rank's rows] fp32.
  void set_int8(const Tensor& values, const Tensor& scales);
  /// Frees the memory, when inference uses another form of the weight (int8, panels).
  void drop() {
    leaf_.reset();
    use_.reset();
  }
  /// The tensor that forward reads: the leaf, or the tensor of set_use(). Throws Error(kUsage) when
  /// there is no memory, or the parameter is sharded by FSDP and not gathered.
  [[nodiscard]] const Tensor& use() const;
  /// Whether use() would succeed.
  [[nodiscard]] bool is_readable() const { return use_.defined(); }
  /// Sets the tensor that use() returns, e.g. FSDP's gathered weight; undefined removes it.
  void set_use(const Tensor& use) { use_ = use; }

  /// A layer reports that it uses this replicated parameter on `activation`. On a Shard or Fanout
  /// activation the gradient is a partial sum, otherwise it is whole. Throws Error(kShape) when
  /// both occur.
  void used_in(const DTensor& activation);
  /// Whether this rank's gradient is a partial sum, to be summed over the axis after backward.
  [[nodiscard]] bool gradient_is_partial() const;

  /// The initial value of this rank's leaf, in `dtype`.
  [[nodiscard]] Tensor initial_value(uint64_t seed, at::ScalarType dtype) const;

 private:
  /// Values of this rank's elements. `fill(first, out)` must write the values of the elements with
  /// global indices from `first` on.
  template <class Number, class Fill>
  [[nodiscard]] Tensor held_numbers(const Fill& fill) const;
  /// 0 for this rank's elements of one row of the whole, 1 for the others.
  [[nodiscard]] Tensor zero_in_row(int64_t row) const;

  std::vector<int64_t> shape_;
  Init init_;
  std::string name_;
  Ownership ownership_ = Ownership::kOwned;
  std::optional<Axis> copies_;
  bool is_here_ = true;
  Role role_ = Role::kTrained;
  bool keeps_leaf_type_ = false;
  std::optional<at::ScalarType> frozen_type_;
  std::optional<int> int8_row_dim_;
  Placement placement_;
  Axis axis_;
  std::optional<bool> used_in_split_work_;
  Axis data_axis_;
  std::optional<Range> flat_;
  Tensor leaf_, use_;
  Tensor scales_;  // if is_int8()
};

/// The parameters of a model, each once.
using Parameters = std::vector<std::shared_ptr<Parameter>>;

/// Those that training updates: all but the frozen ones.
Parameters trained_of(const Parameters& parameters);

}  // namespace cleave::inline nn
