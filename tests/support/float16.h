#pragma once
#include <bit>
#include <cstdint>

namespace cleave {

/// bf16 is the upper half of an fp32.
inline float bf16_to_fp32(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

/// Rounds to nearest, ties to even; NaN stays NaN.
inline uint16_t fp32_to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
  const uint32_t quiet = (bits >> 16) | 0x40U;
  return static_cast<uint16_t>((bits & 0x7fffffffU) > 0x7f800000U ? quiet : rounded);
}

/// IEEE binary16 to fp32, exact.
inline float fp16_to_fp32(uint16_t half) {
  const uint32_t sign = (half & 0x8000U) << 16;
  const uint32_t magnitude = (half & 0x7fffU) << 13;  // exponent and mantissa at their fp32 places
  constexpr uint32_t kExponents = 0x7c00U << 13;
  const uint32_t exponent = magnitude & kExponents;
  const uint32_t normal = magnitude + ((127U - 15U) << 23);
  const uint32_t infinite = magnitude + ((255U - 31U) << 23);
  // Adds a hidden one to a subnormal and subtracts it again: no fp32 subnormal is ever an operand,
  // so flush-to-zero modes do not matter.
  constexpr uint32_t kHiddenOne = (127U - 14U) << 23;
  const uint32_t subnormal = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude + kHiddenOne) -
                                                     std::bit_cast<float>(kHiddenOne));
  const uint32_t bits = exponent == kExponents ? infinite : exponent == 0 ? subnormal : normal;
  return std::bit_cast<float>(bits | sign);
}

/// fp32 to IEEE binary16: rounds to nearest, ties to even; too large becomes infinity.
inline uint16_t fp32_to_fp16(float value) {
  const uint32_t all = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (all >> 16) & 0x8000U;
  const uint32_t bits = all & 0x7fffffffU;
  const uint32_t normal = (bits - ((127U - 15U) << 23) + 0xfffU + ((bits >> 13) & 1U)) >> 13;
  // Adding 0.5 moves a subnormal's mantissa to the low bits; the fp32 addition does the rounding.
  const uint32_t subnormal =
      std::bit_cast<uint32_t>(std::bit_cast<float>(bits) + 0.5F) - std::bit_cast<uint32_t>(0.5F);
  const uint32_t special = bits > 0x7f800000U ? 0x7e00U : 0x7c00U;
  const uint32_t finite = bits < ((127U - 14U) << 23) ? subnormal : normal;
  return static_cast<uint16_t>((bits >= ((127U + 16U) << 23) ? special : finite) | sign);
}

}  // namespace cleave
