#pragma once
#include <ATen/core/Tensor.h>

namespace cleave::inline kernels {

using at::Tensor;

/// Whether the fused functions below support these inputs: non-empty, all fp32 or all bf16, on the
/// CPU, the meta device or a device with kernels (kernels/device.h).
///
/// The fused functions make one pass over memory where libtorch makes several. Arithmetic is in
/// fp32; results and gradients have the inputs' type. They are differentiable unless noted. On the
/// meta device they only compute shapes.
bool takes_fused(std::initializer_list<Tensor> inputs);

/// x / sqrt(mean(x^2) + eps) (weight + offset).   x [.., D]   weight [D]
Tensor fused_rms_norm(const Tensor& x, const Tensor& weight, double eps, double offset = 0);

/// (x - mean(x)) / sqrt(variance(x) + eps) weight + bias.   x [.., D]   weight, bias [D]
Tensor fused_layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps);

/// The terms of a sum, of the same shape; `b` undefined: `a` alone.
struct Terms {
  Tensor a, b;
};
/// a + b in their type, and its norm.
struct NormedSum {
  Tensor sum, normed;
};
/// The norms above of a sum: one pass more over memory is saved in each direction.
NormedSum fused_rms_norm(const Terms& x, const Tensor& weight, double eps, double offset);
NormedSum fused_layer_norm(const Terms& x, const Tensor& weight, const Tensor& bias, double eps);

/// GELU with the tanh approximation: x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2.
Tensor fused_gelu(const Tensor& x);

/// silu(gate) up, for `gate` and `up` of the same shape.
Tensor fused_gate(const Tensor& gate, const Tensor& up);

/// Rotates the two halves (a, b) of every head: (a cos - b sin, b cos + a sin).
///
///   x [B, H, T, K]   cos, sin [T, K/2] or [B or 1, T, K/2], contiguous
///   result [B, H, T, K], in memory as [B, T, H, K]
Tensor fused_rotary(const Tensor& x, const Tensor& cos, const Tensor& sin);

/// For each row of this rank's logits [N, W]: the largest logit [N] and the sum of
/// exp(logit - largest) [N], in fp32; 0 for a row of -infinity. Not differentiable.
struct SoftmaxSums {
  Tensor largest, sums;
};
SoftmaxSums softmax_sums(const Tensor& logits);

/// d loss / d logits [N, W], in the logits' type: (exp(logit - largest_n) / sum_n - spread -
/// [column is target_n] weight) factor_n.
///
///   factor [N] fp32; 0 gives zeros   target [N] int64 local column, -1 = none on this rank
struct SoftmaxGradient {
  SoftmaxSums rows;  ///< over all ranks' classes
  Tensor factor, target;
  double spread = 0;
  double weight = 1;
};
Tensor softmax_gradient(const Tensor& logits, const SoftmaxGradient& arguments);

/// sum + x in fp32, in the memory of `sum` if that is fp32. libtorch would first copy a bf16 `x` to
/// fp32. `sum` fp32 or bf16, `x` of the same shape. Not differentiable.
Tensor add_in_fp32(const Tensor& sum, const Tensor& x);

/// L2 norm of all elements, with squares and sums in fp64. `t` must be contiguous and pass
/// takes_fused. Not differentiable.
double fused_l2_norm(const Tensor& t);

}  // namespace cleave::inline kernels
