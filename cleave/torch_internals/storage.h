#pragma once
#include <ATen/core/Tensor.h>

namespace cleave {

using at::Tensor;

// The memory of a tensor leaves and returns while the tensor stays: views of it, and graphs that
// saved it, read the new memory. libtorch does not count this as a change of the tensor.

/// Frees the memory of `t`. Nothing may read `t` or its views until move_storage() gives it other
/// memory.
void free_storage(const Tensor& t);

/// Gives the memory of `from`, which loses it, to `to`, whose memory is free. Both have as many
/// bytes.
void move_storage(const Tensor& from, const Tensor& to);

}  // namespace cleave
