#pragma once
#include <cstdint>
#include <span>

#include "cleave/nn/layer.h"

namespace cleave::inline model {

/// Floating point operations of forward and backward of these layers and those below them, per
/// token that they read. Gradients of frozen matrices are not computed.
[[nodiscard]] double train_flops_of(std::span<Layer* const> layers, int64_t seq_len);

}  // namespace cleave::inline model
