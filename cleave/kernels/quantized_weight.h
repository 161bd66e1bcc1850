#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

namespace cleave::inline kernels {

using at::Tensor;

/// The forms in which the weights of linear layers are frozen (QuantizedWeight).
enum class QuantizedForm : uint8_t {
  kInt8,  ///< 8 bits, with a scale for each output
  /// "4-bit NormalFloat": one of 16 numbers, with a scale for each block of kNf4Block inputs of an
  /// output. Source: Dettmers and others, arXiv:2305.14314, section 3 and appendix E.
  kNf4,
};
/// "int8", "nf4"
std::string_view name(QuantizedForm form);

/// Inputs in a block, as in bitsandbytes.
inline constexpr int64_t kNf4Block = 64;

/// A matrix in a QuantizedForm: each element is a number times a scale.
struct QuantizedWeight {
  QuantizedForm form = QuantizedForm::kInt8;
  std::vector<int64_t> shape;
  int row_dim = 0;  ///< the dim of the layer's outputs; the other one has its inputs
  /// kInt8: the numbers, of `shape`, -127 to 127. kNf4: [ceil(numel / 2)] int8, the flattened
  /// matrix with two elements a byte, the first one in the lower bits. Contiguous.
  Tensor values;
  /// `shape`, with 1 (kInt8) or the number of blocks (kNf4) instead of the inputs; fp32.
  Tensor scales;
  Tensor block_of;  ///< kNf4: [inputs] int32, the block of each input, an index of `scales`
};

/// The matrix in `type`: products in fp32, rounded once.
Tensor dequantize(const QuantizedWeight& weight, at::ScalarType type);

/// The scales for rows with these largest magnitudes: 127 represents the largest. A row of zeros
/// has the scale 1.
Tensor int8_scales(const Tensor& largest);

/// round(x / scales) in int8, ties to even; `scales` is broadcast.
Tensor to_int8_values(const Tensor& x, const Tensor& scales);

/// Elements of a matrix that are to be in kNf4: those of the flattened matrix from `begin` on.
struct Nf4Elements {
  Tensor elements;    ///< [count] fp32, contiguous
  int64_t begin = 0;  ///< even
  std::vector<int64_t> shape;
  int row_dim = 0;
  Tensor block_of;
};

/// The largest magnitude of each block among the elements, in the shape of the scales, which are
/// the largest magnitudes of all elements; infinity where an element is not finite.
Tensor nf4_largest(const Nf4Elements& part, int64_t num_blocks);

/// The nearest numbers to the elements / scales: [ceil(count / 2)] int8, as
/// QuantizedWeight::values.
Tensor to_nf4_values(const Nf4Elements& part, const Tensor& scales);

/// The numbers, without scales, of the first `count` elements of QuantizedWeight::values in kNf4:
/// [count] fp32 on the same device.
Tensor nf4_numbers(const Tensor& values, int64_t count);

}  // namespace cleave::inline kernels
