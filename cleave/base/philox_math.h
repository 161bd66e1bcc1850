#pragma once
// The arithmetic of base/philox.h in one source for the CPU and for GPUs, so that both have the
// same bits. nvcc must not contract a*b+c (--fmad=false).
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>

#include "cleave/base/device_code.h"

namespace cleave::inline base {

/// Factors of a round.
inline constexpr uint32_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
/// What is added to the key after a round.
inline constexpr uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
/// Rounds of the generator.
inline constexpr int kPhiloxRounds = 10;
/// 2 pi.
inline constexpr double kTwoPi = 6.283185307179586;
/// ln 2.
inline constexpr double kLn2 = 0.6931471805599453;

/// philox() of base/philox.h.
CLEAVE_DEVICE std::array<uint32_t, 4> philox_words(uint64_t key, uint64_t counter_low,
                                                   uint64_t counter_high) {
  auto k0 = static_cast<uint32_t>(key);
  auto k1 = static_cast<uint32_t>(key >> 32);
  auto c0 = static_cast<uint32_t>(counter_low);
  auto c1 = static_cast<uint32_t>(counter_low >> 32);
  auto c2 = static_cast<uint32_t>(counter_high);
  auto c3 = static_cast<uint32_t>(counter_high >> 32);
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const uint64_t p0 = uint64_t{kMultiplier0} * c0;
    const uint64_t p1 = uint64_t{kMultiplier1} * c2;
    c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<uint32_t>(p1);
    c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<uint32_t>(p0);
    k0 += kWeyl0;
    k1 += kWeyl1;
  }
  return {c0, c1, c2, c3};
}

/// A number of philox_words as a uniform number in [0, 1).
CLEAVE_DEVICE float uniform_of(uint32_t word) {
  return static_cast<float>(word >> 8) * 0x1p-24F;
}

/// Natural logarithm of x in (0, 1]; relative error below 1e-15. With x = m * 2^e and m in
/// [0.75, 1.5), it is e * ln 2 + 2 atanh((m-1)/(m+1)).
CLEAVE_DEVICE double log_unit(double x) {
  const auto bits = std::bit_cast<uint64_t>(x);
  auto exponent = static_cast<int64_t>(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & 0xFFFFFFFFFFFFFULL) | 0x3FF0000000000000ULL);
  if (m >= 1.5) {
    m *= 0.5;
    exponent += 1;
  }
  const double s = (m - 1) / (m + 1);
  const double z = s * s;  // |s| <= 0.2, so eleven terms give full double precision
  double sum = 0;
  for (int k = 21; k >= 1; k -= 2) sum = sum * z + 1.0 / k;
  return 2 * s * sum + static_cast<double>(exponent) * kLn2;
}

/// Sine and cosine of 2 pi t for t in [0, 1): range reduction to |x| <= pi / 4, then Taylor series.
CLEAVE_DEVICE void sin_cos_turn(double t, double& sine, double& cosine) {
  const auto octant = static_cast<int>(t * 8);
  const int quarter = (octant + 1) / 2;            // nearest quarter turn, 0..4
  const double x = (t - quarter * 0.25) * kTwoPi;  // |x| <= pi / 4
  const double z = x * x;
  double s = 0;
  double c = 0;
  for (int k = 8; k >= 1; --k) {
    s = (s + 1) * (-z / ((2 * k) * (2 * k + 1)));
    c = (c + 1) * (-z / ((2 * k) * (2 * k - 1)));
  }
  s = (s + 1) * x;
  c = c + 1;
  switch (quarter % 4) {
    case 0:
      sine = s, cosine = c;
      break;
    case 1:
      sine = c, cosine = -s;
      break;
    case 2:
      sine = -s, cosine = -c;
      break;
    default:
      sine = -c, cosine = s;
      break;
  }
}

/// The four normal numbers of one counter value.
CLEAVE_DEVICE std::array<double, 4> normal_block(uint64_t key, uint64_t block) {
  const auto u = philox_words(key, block, 0);
  std::array<double, 4> out{};
  for (size_t pair = 0; pair < 2; ++pair) {
    const double uniform = (u[2 * pair] + 1.0) * 0x1p-32;  // in (0, 1], so its logarithm is finite
    const double radius = std::sqrt(-2 * log_unit(uniform));
    double sine = 0;
    double cosine = 0;
    sin_cos_turn(u[2 * pair + 1] * 0x1p-32, sine, cosine);
    out[2 * pair] = radius * cosine;
    out[2 * pair + 1] = radius * sine;
  }
  return out;
}

}  // namespace cleave::inline base
