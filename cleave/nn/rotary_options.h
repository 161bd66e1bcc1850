#pragma once
#include <cstdint>

namespace cleave {

/// Rotary position embedding: the rotation angle of each dim pair per position.
struct RotaryOptions {
  int64_t head_dim = 0;  ///< even
  double theta = 10000;
  enum class Scaling : uint8_t { kNone, kLinear, kLlama3 } scaling = Scaling::kNone;
  double factor = 1;               ///< linear and llama3
  double low_freq_factor = 1;      ///< llama3
  double high_freq_factor = 4;     ///< llama3
  int64_t original_positions = 0;  ///< llama3: context length of the original training
};

}  // namespace cleave
