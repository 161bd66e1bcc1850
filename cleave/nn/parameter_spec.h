#pragma once
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "cleave/kernels/quantized_weight.h"
#include "cleave/layout/placement.h"
#include "cleave/mesh/axis.h"

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

/// What a parameter is, on every rank and layout: name, whole shape, initial values, and what
/// training does with it.
class ParameterSpec {
 public:
  ParameterSpec(std::vector<int64_t> shape, Init init) : shape_(std::move(shape)), init_(init) {}

  [[nodiscard]] const std::vector<int64_t>& shape() const { return shape_; }  ///< whole
  [[nodiscard]] int64_t numel() const;                                        ///< whole
  [[nodiscard]] const Init& init() const { return init_; }
  /// Full name as in Hugging Face files, e.g. "model.norm.weight". Set once by Layer::name_tree().
  [[nodiscard]] const std::string& name() const { return name_; }
  void set_name(const std::string& name) { name_ = name; }

  /// What training does with it. kTrained: updates it. kFrozen: only reads it, so it has no
  /// gradient, no optimizer state and no master weight. kAdapter: updates it, and it belongs to the
  /// adapter of a frozen model, not to the model's own files.
  enum class Role : uint8_t { kTrained, kFrozen, kAdapter };
  [[nodiscard]] bool is_frozen() const { return role_ == Role::kFrozen; }
  [[nodiscard]] bool is_adapter() const { return role_ == Role::kAdapter; }
  void set_adapter() { role_ = Role::kAdapter; }
  /// Whether forward reads it in the type of the leaf even if it reads other weights in a narrower
  /// type. So it is for magnitudes: 16 bits would round their changes away.
  [[nodiscard]] bool keeps_leaf_type() const { return keeps_leaf_type_; }
  void keep_leaf_type() { keeps_leaf_type_ = true; }
  /// How a matrix is frozen in fewer bits (Parameter::freeze_quantized): the form, and the dim of
  /// the layer's outputs.
  struct Quantization {
    QuantizedForm form = QuantizedForm::kInt8;
    int row_dim = 0;
  };
  [[nodiscard]] const std::optional<Quantization>& quantization() const { return quantization_; }
  [[nodiscard]] bool is_quantized() const { return quantization_.has_value(); }
  [[nodiscard]] bool is_nf4() const {
    return quantization_ && quantization_->form == QuantizedForm::kNf4;
  }
  /// The type of its memory in a model whose trained weights have the type `trained`.
  [[nodiscard]] at::ScalarType leaf_type(at::ScalarType trained) const {
    return frozen_type_.value_or(trained);
  }

 protected:
  void set_frozen(at::ScalarType type) {
    role_ = Role::kFrozen;
    frozen_type_ = type;
  }
  void set_quantization(const Quantization& quantization) { quantization_ = quantization; }

 private:
  std::vector<int64_t> shape_;
  Init init_;
  std::string name_;
  Role role_ = Role::kTrained;
  bool keeps_leaf_type_ = false;
  std::optional<at::ScalarType> frozen_type_;
  std::optional<Quantization> quantization_;
};

/// Which elements of a parameter this rank holds: its part over tensor-parallel ranks, of that its
/// flat range over data-parallel ranks, and whether its stage and expert are on this rank.
class ParameterSharding : public ParameterSpec {
 public:
  using ParameterSpec::ParameterSpec;

  [[nodiscard]] const Placement& placement() const { return placement_; }  ///< Replicate or Shard
  [[nodiscard]] const Axis& axis() const { return axis_; }
  [[nodiscard]] bool is_split() const { return placement_.is_shard() && axis_.size() > 1; }

  /// Puts the parameter on an axis, whole on every rank.
  void replicate(const Axis& axis);

  /// Whether this rank uses it: a rank uses the parameters of its pipeline stages, and among the
  /// experts those of its own. kOwned: yes. kCopy: yes, but an earlier stage owns it (tied
  /// weights), writes it to files and counts it in norms. kNotOwned: no, so it gets no memory here.
  enum class Ownership : uint8_t { kOwned, kCopy, kNotOwned };
  void set_ownership(Ownership ownership) { ownership_ = ownership; }
  [[nodiscard]] Ownership ownership() const { return ownership_; }

  /// Expert parallelism: of the data-parallel ranks only `copies` have this parameter. `is_here`:
  /// this rank is one of them; if not, `copies` is unused.
  void set_copies(const Axis& copies, bool is_here) {
    copies_ = copies;
    is_here_ = is_here;
  }
  /// The data-parallel ranks that have the parameter; empty: all of them.
  [[nodiscard]] const std::optional<Axis>& copies() const { return copies_; }
  [[nodiscard]] bool is_here() const { return is_here_; }

  [[nodiscard]] std::vector<int64_t> local_shape() const;
  /// This rank's ranges of dim split_dim(), and the part of them that it owns, i.e. writes to files
  /// and counts in norms. If it is not sharded: the whole of dim 0, owned by rank 0 of the axis. A
  /// kCopy or kNotOwned parameter owns nothing.
  [[nodiscard]] int64_t split_dim() const { return is_split() ? placement_.dim() : 0; }
  [[nodiscard]] std::vector<Range> ranges() const;
  [[nodiscard]] std::vector<Range> owned() const;

  [[nodiscard]] bool is_flat() const { return flat_.has_value(); }
  /// The range of the flattened part that this rank's leaf holds; all of it unless is_flat().
  [[nodiscard]] Range flat_range() const;
  /// The axis that a flat leaf is sharded over; the default axis (one rank) unless is_flat().
  [[nodiscard]] const Axis& data_axis() const { return data_axis_; }
  /// local_shape(), or one dim where the leaf is flat.
  [[nodiscard]] std::vector<int64_t> leaf_shape() const;
  /// leaf_shape(), or one dim of bytes where each holds two elements (is_nf4()). A flat range of
  /// such a parameter begins at an even element.
  [[nodiscard]] std::vector<int64_t> stored_shape() const;
  /// The same of this rank's part, as if the leaf were not flat: the shape of use().
  [[nodiscard]] std::vector<int64_t> use_shape() const;
  /// The places of this rank's part in a dim of the whole.
  [[nodiscard]] std::vector<int64_t> indices(int64_t dim) const;
  /// This rank's leaf elements of a tensor of the whole shape, as a copy.
  [[nodiscard]] Tensor part_of(const Tensor& whole) const;

  /// The initial value of this rank's leaf, in `dtype`.
  [[nodiscard]] Tensor initial_value(uint64_t seed, at::ScalarType dtype) const;

 protected:
  void set_placement(const Axis& axis, const Placement& placement) {
    axis_ = axis;
    placement_ = placement;
  }
  void set_flat(const Axis& data, Range range) {
    data_axis_ = data;
    flat_ = range;
  }

 private:
  /// Values of this rank's elements. `fill(first, out)` must write the values of the elements with
  /// global indices from `first` on.
  template <class Number, class Fill>
  [[nodiscard]] Tensor held_numbers(const Fill& fill) const;
  /// 0 for this rank's elements of one row of the whole, 1 for the others.
  [[nodiscard]] Tensor zero_in_row(int64_t row) const;

  Placement placement_;
  Axis axis_;
  Axis data_axis_;
  std::optional<Range> flat_;
  Ownership ownership_ = Ownership::kOwned;
  std::optional<Axis> copies_;
  bool is_here_ = true;
};

}  // namespace cleave::inline nn
