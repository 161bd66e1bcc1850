#pragma once
#include "cleave/kernels/cpu/int4.h"
#include "cleave/nn/linear.h"

namespace cleave::inline nn {

/// Throws Error(kNumerics), naming the weight and its new form ("int8"), if one of its values, or
/// of the largest of its groups, is not finite.
void check_weight_finite(const Tensor& values, const std::string& weight, std::string_view form);

// Forms of a Linear's weight that only inference uses. From the call on, forward multiplies a copy
// in the form instead of the weight, whose memory may be freed. Each returns whether it applies.

/// If the weight is stored [in, out]: an [out, in] copy, which is faster for products of a few
/// rows.
bool to_rows(Linear& layer);
/// If takes_panels(weight): a copy in panels.
bool to_panels(Linear& layer);
/// An int8 copy of the weight; x is rounded to int8 too. Each output and each row of x has one
/// scale, common to all ranks' parts. Collective if Rowwise. Throws Error(kNumerics) naming the
/// weight when it is not finite. Applies if least_bits() is at most 8.
bool to_int8(Linear& layer);
/// As to_int8(), in 4 bits: each group of 32 inputs of an output has a scale, and a minimum if
/// `has_mins`, common to all ranks' parts of the group. x is rounded to int8 by the same groups.
/// Applies if least_bits() is 4.
bool to_int4(Linear& layer, bool has_mins);
/// The inputs of this rank's part of the weight, by groups.
std::vector<Int4Part> int4_parts_of(const Linear& layer);
/// As to_int4(), with a matrix that is in 4 bits already: this rank's outputs, and the groups of
/// int4_parts_of(). The weight may be without memory.
void set_int4(Linear& layer, const Int4Rows& rows);

}  // namespace cleave::inline nn
