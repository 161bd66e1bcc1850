#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace cleave::inline nn {

/// Element-wise activation functions of an MLP.
enum class Activation : uint8_t { kSilu, kGelu, kGeluTanh, kRelu };

/// The activation of a name in config.json: silu, swish, gelu, gelu_new, gelu_pytorch_tanh, relu.
/// Throws Error(kFormat) for other names.
Activation activation_from_name(const std::string& name);

/// The RMS norm of queries and keys before rotary positions: none, over the dims of each head, or
/// over all heads together.
enum class QkNorm : uint8_t { kNone, kEachHead, kAllHeads };

/// Rotary position embedding: the rotation angle of each dim pair per position.
struct RotaryOptions {
  int64_t head_dim = 0;  ///< how many dims of a head rotate; even
  double theta = 10000;
  enum class Scaling : uint8_t { kNone, kLinear, kLlama3, kYarn, kLongRope };
  Scaling scaling = Scaling::kNone;
  double factor = 1;               ///< linear, llama3 and yarn
  double low_freq_factor = 1;      ///< llama3
  double high_freq_factor = 4;     ///< llama3
  int64_t original_positions = 0;  ///< llama3, yarn, longrope: length of the original training
  double magnitude = 1;            ///< yarn, longrope: factor of cos and sin
  double beta_fast = 32;           ///< yarn: rotations per original length above which a
  double beta_slow = 1;            ///< frequency is kept, and below which it is divided by `factor`
  bool truncates = true;           ///< yarn: the bounds between these are whole dims
  /// longrope: divisors of the frequencies [head_dim / 2] of sequences up to original_positions,
  /// and of longer ones.
  std::vector<double> short_factors{}, long_factors{};
};

}  // namespace cleave::inline nn
