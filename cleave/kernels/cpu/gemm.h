#pragma once
#include <functional>
#include <memory>
#include <optional>

#include <ATen/core/Tensor.h>

namespace cleave::inline torch_internals {
class DeferredGradients;
}

namespace cleave::inline kernels {

using at::Tensor;

/// x weight^T + bias by the library that set_gemm() chose, differentiable.
///
///   x [.., in]   weight [out, in]   bias [out] or empty   result [.., out]
///
/// With `deferred`, the weight gradient is deferred (torch_internals/deferred.h).
Tensor affine(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
              const std::shared_ptr<DeferredGradients>& deferred = nullptr);

/// A matrix of low rank, scale b a, that is added to a weight.
struct LowRank {
  Tensor a;  ///< [rank, in]
  Tensor b;  ///< [out, rank]
  double scale = 1;
};

/// The same for a weight and a bias without gradients. `weight` makes the matrix [out, in], in x's
/// type, for forward and again for backward, so that it is not kept between them. With `branch`, x
/// (scale b a)^T is added, differentiable in a and b.
Tensor affine_frozen(const Tensor& x, std::function<Tensor()> weight,
                     const std::optional<Tensor>& bias,
                     const std::optional<LowRank>& branch = std::nullopt);

/// a b by the library of affine(), as affine() and its backward compute it. Not differentiable.
///
///   a [m, k], b [k, n]: each with contiguous rows or contiguous columns
Tensor matrix_product(const Tensor& a, const Tensor& b);

/// Whether few_rows_linear supports these: x of 1 to 8 rows and a contiguous matrix, both fp32 or
/// both bf16 on the CPU; up to 64 rows of bf16 if lacks_fast_products. Such products occur in
/// decoding and are limited by reading the weights.
bool takes_few_rows(const Tensor& x, const Tensor& weight);

/// x weight^T + bias, summed in fp32. Not differentiable.
///
///   x [.., in]   weight [out, in]   bias [out] or empty   result [.., out] of x's type
Tensor few_rows_linear(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias);

}  // namespace cleave::inline kernels
