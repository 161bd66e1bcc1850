#pragma once
#include <span>
#include <vector>

#include "cleave/base/range.h"
#include "cleave/nn/parameter.h"

namespace cleave::inline checkpoint {

/// Blocks of the whole tensor, as files address them, that in order make up this rank's leaf. A
/// block without slices is the whole tensor.
std::vector<std::vector<Slice>> held_blocks(const Parameter& parameter);

/// A part that this rank writes of a tensor sharded like a parameter. Exactly one rank of the
/// parameter's axes writes each element of the whole.
struct OwnedPart {
  std::vector<Slice> slices;
  Tensor values;  ///< contiguous, on the CPU, of the requested dtype
};

/// `local` has parameter.leaf_shape(); `dtype` is that of the file. Empty: nothing to write.
std::vector<OwnedPart> owned_parts(const Parameter& parameter, const Tensor& local,
                                   at::ScalarType dtype);

/// The memory of a contiguous CPU tensor.
std::span<const std::byte> bytes_of(const Tensor& t);
std::span<std::byte> mutable_bytes_of(Tensor& t);

}  // namespace cleave::inline checkpoint
