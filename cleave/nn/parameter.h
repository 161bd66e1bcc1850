#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "cleave/layout/dtensor.h"

namespace cleave {

/// How a parameter starts. Values are a function of (seed, name, global element index), so they do
/// not depend on the layout.
struct Init {
  enum class Kind : uint8_t { kNormal, kUniform, kConstant } kind = Kind::kNormal;
  double value = 0.02;  ///< standard deviation, the bound of [-bound, bound), or the constant
  static Init normal(double standard_deviation) { return {Kind::kNormal, standard_deviation}; }
  static Init uniform(double bound) { return {Kind::kUniform, bound}; }
  static Init constant(double value) { return {Kind::kConstant, value}; }
};

/// A model's weight: its whole shape, where its elements are, and the tensors that hold this
/// rank's.
///
/// The record exists before any memory does: plans shape it, then materialize() or a checkpoint
/// allocates and fills this rank's part alone.
class Parameter {
 public:
  Parameter(std::vector<int64_t> shape, Init init) : shape_(std::move(shape)), init_(init) {}

  [[nodiscard]] const std::vector<int64_t>& shape() const { return shape_; }  ///< whole
  [[nodiscard]] int64_t numel() const;                                        ///< whole
  [[nodiscard]] const Init& init() const { return init_; }
  /// Full name as in Hugging Face files, e.g. "model.norm.weight". Given once, by the tree.
  [[nodiscard]] const std::string& name() const { return name_; }
  void set_name(const std::string& name) { name_ = name; }

  [[nodiscard]] const Placement& placement() const { return placement_; }  ///< Replicate or Shard
  [[nodiscard]] const Axis& axis() const { return axis_; }
  [[nodiscard]] bool is_split() const { return placement_.is_shard() && axis_.size() > 1; }

  /// Puts the parameter on an axis, whole on every rank.
  void replicate(const Axis& axis);
  /// Cuts `dim` over the axis. Where memory was given already, the leaf stays the same tensor and
  /// keeps this rank's part, so an optimizer that holds it goes on. Again with the same cut it does
  /// nothing; Error(kShape) for another cut, Error(kUsage) when the whole has a gradient.
  void shard(const Axis& axis, int dim, const Split* split);
  /// Cuts the dim that is cut already in another way. Error(kUsage) when memory was given already
  /// or nothing is cut, Error(kShape) for a split of another size.
  void recut(const Split* split);

  /// Which pipeline stages use it: those of this rank; those of this rank beside an earlier one,
  /// which writes and counts it (tied weights); or none of this rank, which then gives it no
  /// memory.
  enum class Ownership : uint8_t { kHere, kCopy, kNotOwned };
  void set_home(Ownership home) { home_ = home; }
  [[nodiscard]] Ownership home() const { return home_; }

  [[nodiscard]] std::vector<int64_t> local_shape() const;
  /// This rank's ranges of dim split_dim(), and those that it writes and counts; the whole of dim 0
  /// where it is not split (owned: by rank 0 of the axis alone). A copy owns nothing.
  [[nodiscard]] int64_t split_dim() const { return is_split() ? placement_.dim() : 0; }
  [[nodiscard]] std::vector<Range> ranges() const;
  [[nodiscard]] std::vector<Range> owned() const;

  /// Cuts the leaf further, over ranks that would all hold the same: it is the elements `range` of
  /// this rank's part, flattened row-major (FSDP, ZeRO-1). Memory that was given already is cut
  /// too.
  void shard_flat(const Axis& data, Range range);
  [[nodiscard]] bool is_flat() const { return flat_.has_value(); }
  /// Of the flattened part, what this rank's leaf holds; all of it unless is_flat().
  [[nodiscard]] Range flat_range() const;
  /// The ranks that a flat leaf is cut over; one rank unless is_flat().
  [[nodiscard]] const Axis& data_axis() const { return data_axis_; }
  /// local_shape(), or one dim where the leaf is flat.
  [[nodiscard]] std::vector<int64_t> leaf_shape() const;
  /// What a leaf holds of a tensor of the whole shape, in memory of its own.
  [[nodiscard]] Tensor part_of(const Tensor& whole) const;

  /// What the optimizer updates; undefined until there is memory.
  [[nodiscard]] const Tensor& leaf() const { return leaf_; }
  /// Gives memory: `leaf` has leaf_shape(). It becomes a leaf that requires grad.
  void set_leaf(const Tensor& leaf);
  /// Gives the memory back: who runs the model has made another form of it.
  void drop() {
    leaf_.reset();
    use_.reset();
  }
  /// What forward reads: the leaf, unless a wrap put another tensor there. Throws Error(kUsage)
  /// before there is memory.
  [[nodiscard]] const Tensor& use() const;
  /// Whether forward may read it now.
  [[nodiscard]] bool is_readable() const { return use_.defined(); }
  /// Puts another tensor where forward reads; undefined takes it away.
  void set_use(const Tensor& use) { use_ = use; }

  /// ConfigFingerprint by a layer that used this whole parameter on an activation so placed: in split work
  /// (Shard, Fanout) its gradient is a partial sum. Throws Error(kShape) when both kinds of use
  /// occur.
  void used_in(const DTensor& activation);
  /// Whether the gradient on this rank is only a part, to be summed over the axis after backward.
  [[nodiscard]] bool gradient_is_partial() const;

  /// The starting value of this rank's leaf, of `dtype`.
  [[nodiscard]] Tensor initial_value(uint64_t seed, at::ScalarType dtype) const;

 private:
  /// This rank's elements in memory order; `fill(first, out)` numbers them from `first` on in the
  /// whole.
  template <class Number, class Fill>
  [[nodiscard]] Tensor held_numbers(const Fill& fill) const;

  std::vector<int64_t> shape_;
  Init init_;
  std::string name_;
  Ownership home_ = Ownership::kHere;
  Placement placement_;
  Axis axis_;
  std::optional<bool> used_in_split_work_;
  Axis data_axis_;
  std::optional<Range> flat_;
  Tensor leaf_, use_;
};

}  // namespace cleave
