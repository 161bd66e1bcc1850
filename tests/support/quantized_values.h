#pragma once
#include <vector>

#include <ATen/ATen.h>

#include "cleave/kernels/cpu/dequantize.h"

namespace cleave::test {

// What a form of quantized weights leaves of a matrix [rows, inputs], or [inputs, rows] with
// `row_dim` 1, in its type. Oracle: libtorch's operations in fp32.

/// int8 with a scale for each row.
inline at::Tensor rounded_to_int8(const at::Tensor& matrix, int row_dim) {
  const at::Tensor w = matrix.to(at::kFloat);
  const at::Tensor scale = w.abs().amax(1 - row_dim, true) / 127;
  return ((w / scale).round() * scale).to(matrix.scalar_type());
}

/// nf4: the nearest of 16 numbers times the largest of 64 inputs.
inline at::Tensor rounded_to_nf4(const at::Tensor& matrix, int row_dim) {
  const at::Tensor numbers = at::tensor(at::ArrayRef<float>(kNf4Numbers), at::kFloat);
  std::vector<at::Tensor> blocks;
  for (const at::Tensor& block : matrix.to(at::kFloat).split(64, 1 - row_dim)) {
    const at::Tensor scale = block.abs().amax(1 - row_dim, true);
    const at::Tensor index = ((block / scale).unsqueeze(2) - numbers).abs().argmin(2);
    blocks.push_back(numbers.index({index}) * scale);
  }
  return at::cat(blocks, 1 - row_dim).to(matrix.scalar_type());
}

}  // namespace cleave::test
