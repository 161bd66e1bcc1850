#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>

#include "cleave/mesh/axis.h"

namespace cleave {

class DeferredGradients;

/// The libraries that can multiply fp32 matrices on the CPU. Which is faster depends on the CPU: on
/// AMD with AVX-512, oneDNN ran at twice MKL's speed.
enum class Gemm : uint8_t { kMkl, kOneDnn };

/// "mkl" or "onednn".
std::string_view name(Gemm gemm);

/// The library for all later calls of affine() in this process. Set it once, before ranks start;
/// results of the two differ in the last bits.
void set_gemm(Gemm gemm);
Gemm gemm();

/// Applies a --gemm flag, mkl | onednn | auto, the same on all ranks. For auto, rank 0 times both
/// once per CPU model and libtorch version and caches the faster in a file, so that runs on one
/// machine agree. Collective over `everyone`, the axis of all ranks. Throws Error(kUsage) for
/// another flag.
void choose_gemm(const std::string& flag, const Axis& everyone);

/// Times both for a few milliseconds on a typical layer's matrix and returns the faster.
Gemm faster_gemm();

/// x weight^T + bias by the chosen library, differentiable.
///
///   x [.., in]   weight [out, in]   bias [out] or empty   result [.., out]
///
/// With `deferred`, the weight gradient is deferred (torch_internals/deferred.h).
Tensor affine(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
              const std::shared_ptr<DeferredGradients>& deferred = nullptr);

/// The same for a weight and a bias without gradients. `weight` makes the matrix [out, in], in x's
/// type, for forward and again for backward, so that it is not kept between them.
Tensor affine_frozen(const Tensor& x, std::function<Tensor()> weight,
                     const std::optional<Tensor>& bias);

using at::Tensor;

/// Whether few_rows_linear supports these: x of 1 to 8 rows and a contiguous matrix, both fp32 or
/// both bf16 on the CPU. Such products occur in decoding and are limited by reading the weights.
bool takes_few_rows(const Tensor& x, const Tensor& weight);

/// x weight^T + bias, summed in fp32. Not differentiable.
///
///   x [.., in]   weight [out, in]   bias [out] or empty   result [.., out] of x's type
Tensor few_rows_linear(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias);

}  // namespace cleave
