#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "cleave/base/range.h"
#include "cleave/kernels/cpu/int4_input.h"

namespace cleave::inline kernels {

using at::Tensor;

/// A matrix [out, in] in numbers q of 4 bits, 0 to 15. Each group of 32 inputs of an output has a
/// scale: an element is (q - 8) scale, or q scale - min if there are minimums. If a rank holds only
/// some inputs, `groups` are those that it has inputs of.
struct Int4Rows {
  Tensor codes;   ///< [out, groups, 16] uint8: byte i has elements i (lower half) and i + 16
  Tensor scales;  ///< [out, groups] fp16
  Tensor mins{};  ///< [out, groups] fp16, subtracted; undefined without them
};

/// Least and largest element of each group, or 0 if that is less or more: [out, groups] fp32.
struct Int4Bounds {
  Tensor low, high;
};

/// The groups of rows [rows, local inputs] of any floating-point type: [rows, parts, 32] fp32, with
/// zeros for inputs that another rank holds or that do not exist.
Tensor in_groups(const Tensor& rows, const std::vector<Int4Part>& parts);
/// The bounds of groups [out, parts, 32].
Int4Bounds int4_bounds(const Tensor& groups);

/// Rounds groups [out, parts, 32] to 4 bits. `bounds` are those of the whole groups, and finite.
///
/// With minimums, scale = fp16((high - low) / 15), min = fp16(-low) and q = (x + min) / scale.
/// Without, scale = fp16(m / -8), where m is the bound of larger magnitude, and q = x / scale + 8.
/// q is rounded to nearest, ties to even, from 0 to 15. Throws Error(kNumerics) naming `what` for a
/// scale or minimum beyond fp16.
Int4Rows to_int4(const Tensor& groups, const Int4Bounds& bounds, bool has_mins,
                 const std::string& what);

/// The matrix in the order in which products read it.
struct Int4Matrix {
  Tensor blocks;                ///< as Int4Job::weight
  std::vector<Int4Part> parts;  ///< this rank's inputs
  bool has_mins = false;
  int64_t in = 0, out = 0;
};

/// Reorders a matrix whose groups are these parts.
Int4Matrix to_matrix(const Int4Rows& rows, std::vector<Int4Part> parts);

/// x weight^T + bias. Each group of a row of x is quantized to int8 by its largest magnitude; the
/// sums of a group's products are exact integers.
///
///   x [.., in] fp32   bias [out] fp32 or empty   result [.., out] fp32
///
/// If other ranks have inputs of the same groups, `largest` [rows of x, parts] fp32 must be the
/// largest magnitudes of the whole groups. Not differentiable.
Tensor int4_linear(const Tensor& x, const Int4Matrix& weight, const std::optional<Tensor>& bias,
                   const Tensor& largest = {});

}  // namespace cleave::inline kernels
