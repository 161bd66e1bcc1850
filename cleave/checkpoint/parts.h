#pragma once
#include <span>
#include <vector>

#include "cleave/base/range.h"
#include "cleave/nn/parameter.h"

namespace cleave {

/// The block of the whole tensor that this rank holds, as files address it. No slices: all of it.
std::vector<Slice> held_slices(const Parameter& parameter);

/// What this rank writes of a tensor cut as `parameter` is: every element of the whole is written
/// by one rank of the axis.
struct OwnedPart {
  std::vector<Slice> slices;
  Tensor values;  ///< contiguous, on the CPU, of the asked dtype; undefined: nothing to write
};

/// `local` has parameter.local_shape(); `dtype` is that of the file.
OwnedPart owned_part(const Parameter& parameter, const Tensor& local, at::ScalarType dtype);

/// The memory of a contiguous CPU tensor.
std::span<const std::byte> bytes_of(const Tensor& t);
std::span<std::byte> mutable_bytes_of(Tensor& t);

}  // namespace cleave
