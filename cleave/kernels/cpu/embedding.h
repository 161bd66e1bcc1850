#pragma once
#include <ATen/core/Tensor.h>

namespace cleave::inline kernels {

using at::Tensor;

/// Rows of a table by id, as at::embedding: rows `padding` (-1: none) get no gradient.
///
///   table [V, D]   ids [..] in [0, V)   result [.., D]
///
/// The gradient of a table in 16 bits is summed in fp32. libtorch rounds the sum on the CPU after
/// each token, so that of a frequent id soon stops to grow.
Tensor embedding_rows(const Tensor& table, const Tensor& ids, int64_t padding);

}  // namespace cleave::inline kernels
