#pragma once
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>

#include "cleave/mesh/axis.h"

namespace cleave {

class DeferredGradients;

/// The libraries that can multiply fp32 matrices on the CPU. Which is faster depends on the
/// processor: on AMD with AVX-512 oneDNN ran at twice MKL's speed.
enum class Gemm : uint8_t { kMkl, kOneDnn };

/// "mkl" or "onednn".
std::string_view name(Gemm gemm);

/// The process's choice, for every later affine(). Set once before ranks start; results of the two
/// differ in the last bits.
void set_gemm(Gemm gemm);
Gemm gemm();

/// Follows a --gemm flag, mkl | onednn | auto, on all ranks alike. For auto rank 0 times both once
/// per machine and libtorch version and remembers the faster, so that runs on one machine agree.
/// Collective over `everyone`. Throws Error(kUsage) for another flag.
void choose_gemm(const std::string& flag, const Axis& everyone);

/// Times both on a matrix of a typical layer for a few milliseconds and returns the faster.
Gemm faster_gemm();

/// x weight^T + bias, differentiable, through the chosen library.
///
///   x [.., in]   weight [out, in]   bias [out] or nothing   result [.., out]
///
/// With `deferred` the gradient of weight is put off.
Tensor affine(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
              const std::shared_ptr<DeferredGradients>& deferred = nullptr);

}  // namespace cleave
