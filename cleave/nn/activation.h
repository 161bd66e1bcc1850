#pragma once
#include <cstdint>
#include <string>

namespace cleave {

/// Element-wise functions between the matrices of an MLP.
enum class Activation : uint8_t { kSilu, kGelu, kGeluTanh, kRelu };

/// From its name in a config.json: silu, swish, gelu, gelu_new, gelu_pytorch_tanh, relu.
/// Throws Error(kFormat) for others.
Activation activation_from_name(const std::string& name);

}  // namespace cleave
