#pragma once
#include <span>
#include <vector>

#include "cleave/base/range.h"
#include "cleave/nn/parameter.h"

namespace cleave {

/// Blocks of the whole tensor, as files address them, that joined are this rank's leaf in order. A
/// block without slices is all of it.
std::vector<std::vector<Slice>> held_blocks(const Parameter& parameter);

/// What this rank writes of a tensor cut as `parameter` is: every element of the whole is written
/// by one rank of the parameter's axes.
struct OwnedPart {
  std::vector<Slice> slices;
  Tensor values;  ///< contiguous, on the CPU, of the asked dtype
};

/// `local` has parameter.leaf_shape(); `dtype` is that of the file. Empty: nothing to write.
std::vector<OwnedPart> owned_parts(const Parameter& parameter, const Tensor& local,
                                   at::ScalarType dtype);

/// The memory of a contiguous CPU tensor.
std::span<const std::byte> bytes_of(const Tensor& t);
std::span<std::byte> mutable_bytes_of(Tensor& t);

}  // namespace cleave
