#pragma once
#include <functional>
#include <optional>

#include <ATen/core/Tensor.h>

namespace cleave::inline kernels {

using at::Tensor;

/// Whether libtorch has no fast products of this 16-bit type on this CPU, for lack of AVX-512 BF16
/// or FP16. Without AVX-512 it multiplies in plain loops: on Zen 3 these reached 0.3 to 18 GFLOP/s,
/// and fp32 products 50 to 60. With AVX-512 alone, oneDNN emulates bf16: 173 GFLOP/s on two cores
/// of a Zen 5 limited to it, and MKL's fp32 products 213. False for other types, and on CPUs other
/// than x86.
bool lacks_fast_products(at::ScalarType type);

/// a b^T of fp32 matrices a [m, k] and b [n, k].
using FloatProduct = std::function<Tensor(const Tensor& a, const Tensor& b)>;

/// to = a b^T + bias, or to += a b^T + bias if `adds`, by the fp32 products of `multiply`; each
/// result is rounded once.
///
///   a [m, k]   b [n, k]   bias [n] or empty   to [m, n]: 16-bit CPU tensors of any strides
///
/// Threads divide the results. Of a, at most 64 MiB are in fp32 at a time; of b, 1 MiB or 64 rows
/// per thread. On the meta device it only allocates these. Not differentiable.
void multiply_in_fp32(const Tensor& a, const Tensor& b, const std::optional<Tensor>& bias,
                      const Tensor& to, bool adds, const FloatProduct& multiply);

}  // namespace cleave::inline kernels
