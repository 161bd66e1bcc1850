#pragma once
#include <cstdint>
#include <string>

namespace cleave {

/// Element-wise activation functions of an MLP.
enum class Activation : uint8_t { kSilu, kGelu, kGeluTanh, kRelu };

/// The activation of a name in config.json: silu, swish, gelu, gelu_new, gelu_pytorch_tanh, relu.
/// Throws Error(kFormat) for other names.
Activation activation_from_name(const std::string& name);

}  // namespace cleave
