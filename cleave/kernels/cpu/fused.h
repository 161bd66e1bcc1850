#pragma once
#include <ATen/core/Tensor.h>

namespace cleave {

using at::Tensor;

/// Operations that libtorch makes of several passes over memory, in one: fp32 or bf16 on the
/// processor, arithmetic in fp32, results and gradients of the inputs' type. They are
/// differentiable unless said, and on the meta device have shapes alone. takes_fused says of the
/// inputs whether they can be used: all of one such type, and not empty.
bool takes_fused(std::initializer_list<Tensor> inputs);

/// x / sqrt(mean(x^2) + eps) weight.   x [.., D]   weight [D]
Tensor fused_rms_norm(const Tensor& x, const Tensor& weight, double eps);

/// (x - mean(x)) / sqrt(variance(x) + eps) weight + bias.   x [.., D]   weight, bias [D]
Tensor fused_layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps);

/// GELU in its form with tanh: x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2.
Tensor fused_gelu(const Tensor& x);

/// silu(gate) up, of one shape.
Tensor fused_gate(const Tensor& gate, const Tensor& up);

/// Turns the halves of every head: (a, b) -> (a cos - b sin, b cos + a sin).
///
///   x [B, H, T, K]   cos, sin [T, K/2] or [B or 1, T, K/2], contiguous   result [B, H, T, K], a
///   token's heads side by side
Tensor fused_rotary(const Tensor& x, const Tensor& cos, const Tensor& sin);

/// What softmax needs of each row of logits [N, W] on this rank: its largest [N] and the sum of
/// exp(logit - largest) [N], fp32. Not differentiable.
struct SoftmaxSums {
  Tensor largest, sums;
};
SoftmaxSums softmax_sums(const Tensor& logits);

/// d loss / d logits of rows, [N, W] of the logits' type: (exp(logit - largest_n) / sum_n - spread
/// - weight where the column is target_n) factor_n.
///
///   factor [N] fp32, 0 gives zeros   target [N] int64, -1 = no column here
struct SoftmaxGradient {
  SoftmaxSums of_rows;  ///< over all ranks' classes
  Tensor factor, target;
  double spread = 0;
  double weight = 1;
};
Tensor softmax_gradient(const Tensor& logits, const SoftmaxGradient& of);

/// The square root of the sum of all elements' squares, squared and added up in fp64: for
/// contiguous tensors that takes_fused takes. Not differentiable.
double fused_l2_norm(const Tensor& t);

}  // namespace cleave
