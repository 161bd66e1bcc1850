#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace cleave::inline runtime {

/// The libraries that can multiply fp32 matrices on the CPU. Which is faster depends on the CPU: on
/// AMD with AVX-512, oneDNN ran at twice MKL's speed.
enum class Gemm : uint8_t { kMkl, kOneDnn };

/// "mkl" or "onednn".
std::string_view name(Gemm gemm);

/// The library for all later calls of affine() in this process. Set it once, before ranks start;
/// results of the two differ in the last bits.
void set_gemm(Gemm gemm);
Gemm gemm();

/// Cleave's fused kernels. Each can be replaced by libtorch's operations (plain kernels).
enum class Kernel : uint8_t {
  kAttention,
  kNorm,
  kGate,
  kRotary,
  kLoss,
  kFewRows,
  kPanels,
  kAdam,
  kRandom  ///< dropout, and initial weights made on a GPU
};
inline constexpr int kNumKernels = 9;

/// Whether a kernel is used where it is applicable; true unless set_plain_kernels turned it off.
bool is_on(Kernel kernel);

/// Turns these kernels off for the process, so that libtorch's operations are used, and all others
/// on: comma-separated names of attention, norm, gate, rotary, loss, few-rows, panels, adam and
/// random, or "all", or "" for none. Call it before ranks start. Results differ in the last bits.
/// Throws Error(kUsage) for another name.
void set_plain_kernels(const std::string& names);

}  // namespace cleave::inline runtime
