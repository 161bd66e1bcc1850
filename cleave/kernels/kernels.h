#pragma once
#include <cstdint>
#include <string>

namespace cleave {

/// Kernels of Cleave's own, each of which libtorch's operations can stand in for.
enum class Kernel : uint8_t { kAttention, kNorm, kGate, kRotary, kLoss, kFewRows, kPanels, kAdam };
inline constexpr int kNumKernels = 8;

/// Whether it is used where it can be: true unless it was turned off.
bool is_on(Kernel kernel);

/// Leaves these to libtorch, for the process, and turns all others on: names out of attention,
/// norm, gate, rotary, loss, few-rows, panels and adam with commas between them, "all", or "" for
/// none.
/// Before ranks start; results differ in the last bits. Throws Error(kUsage) for another name.
void set_plain_kernels(const std::string& names);

}  // namespace cleave
