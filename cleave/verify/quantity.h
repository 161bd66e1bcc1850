#pragma once
#include <optional>
#include <string>
#include <vector>

#include "cleave/layout/dtensor.h"
#include "cleave/verify/verify.h"

namespace cleave::verifying {

/// Short for the kinds of quantity.
using Of = Comparison::Of;

/// One value that a side has, laid out as it is there. On one rank it is whole.
struct Quantity {
  Of of = Of::kOutput;
  std::string subject{};
  Tensor local;
  Axis axis{};
  Placement placement{};
  bool is_gradient = false;     ///< a gradient's elements are placed otherwise than the value's
  std::optional<Range> rows{};  ///< of dim 0 of the whole, where only those are here
  int64_t terms = 0;            ///< of a sum in fp64 that this is
};

/// A parameter's value, or its gradient once it is complete.
Quantity quantity_of(Of of, const Parameter& parameter, const Tensor& local);

/// What one rank has, and how far from it rounding may take another layout's.
struct Wanted {
  Of of = Of::kOutput;
  std::string subject{};
  Tensor value;
  Tensor bound;  ///< fp64, one number or one an element
};

/// Where a quantity is furthest from what is wanted, for the bound there.
struct Measured {
  double distance = 0, bound = 0, split = 0, whole = 0;
  int64_t at = -1;  ///< flat index in the whole; -1: there are no elements here
};

/// Compares on this rank; collective over the quantity's axis. Throws Error(kShape) naming `part`
/// when the shapes differ.
Measured measure(const Quantity& got, const Wanted& want, const std::string& part);

/// Of each place in the list the worst among the ranks of an axis, the same on all of them.
std::vector<Measured> worst(const std::vector<Measured>& measured, const Axis& axis);

}  // namespace cleave::verifying
