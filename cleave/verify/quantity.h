#pragma once
#include <optional>
#include <string>
#include <vector>

#include "cleave/layout/dtensor.h"
#include "cleave/verify/verify.h"

namespace cleave::verifying {

/// The kind of a quantity.
using Of = Comparison::Of;

/// A rank's shard of a value, with its placement. On one rank it is the whole value.
struct Quantity {
  Of of = Of::kOutput;
  std::string subject{};
  Tensor local;  ///< undefined if this rank has no part of it (experts of other ranks)
  Axis axis{};
  Placement placement{};
  bool is_gradient = false;     ///< placed as the gradient of `placement`
  std::optional<Range> rows{};  ///< of dim 0 of the whole, if only these are local
  int64_t terms = 0;            ///< if this is a sum in fp64: its number of terms
};

/// The quantity of a parameter's value or of its complete gradient; without a value if the
/// parameter has no memory on this rank.
Quantity quantity_of(Of of, const Parameter& parameter, const Tensor& local);
/// The gradient of a parameter: zeros if backward did not reach it, undefined if it has no memory
/// on this rank.
Tensor gradient_of(const Parameter& parameter);

/// The value on one rank, and how far rounding may move it on another layout.
struct Wanted {
  Of of = Of::kOutput;
  std::string subject{};
  Tensor value;
  Tensor bound;  ///< fp64, one number or one per element
};

/// The element of a quantity with the largest ratio of distance to bound.
struct Measured {
  double distance = 0, bound = 0, split = 0, whole = 0;
  int64_t at = -1;  ///< flat index in the whole; -1 if there are no elements
};

/// Compares this rank's shard; without a value there are no elements. Collective over the
/// quantity's axis. Throws Error(kShape) with the name `part` if the shapes differ.
Measured measure(const Quantity& got, const Wanted& want, const std::string& part);

/// For each entry the worst over the ranks of an axis; the same on all ranks. Collective.
std::vector<Measured> worst(const std::vector<Measured>& measured, const Axis& axis);

}  // namespace cleave::verifying
