#include "cleave/base/philox.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace cleave::inline base {
namespace {

constexpr uint32_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
constexpr uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
constexpr int kRounds = 10;
constexpr double kTwoPi = 6.283185307179586;
constexpr double kLn2 = 0.6931471805599453;

/// Natural logarithm of x in (0, 1]; relative error below 1e-15. With x = m * 2^e and m in
/// [0.75, 1.5), it is e * ln 2 + 2 atanh((m-1)/(m+1)).
double log_unit(double x) {
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
void sin_cos_turn(double t, double& sine, double& cosine) {
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
std::array<double, 4> normal_block(uint64_t key, uint64_t block) {
  const auto u = philox(key, block, 0);
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

}  // namespace

std::array<uint32_t, 4> philox(uint64_t key, uint64_t counter_low, uint64_t counter_high) {
  auto k0 = static_cast<uint32_t>(key);
  auto k1 = static_cast<uint32_t>(key >> 32);
  auto c0 = static_cast<uint32_t>(counter_low);
  auto c1 = static_cast<uint32_t>(counter_low >> 32);
  auto c2 = static_cast<uint32_t>(counter_high);
  auto c3 = static_cast<uint32_t>(counter_high >> 32);
  for (int round = 0; round < kRounds; ++round) {
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

uint64_t stream_key(uint64_t seed, std::string_view stream) {
  uint64_t hash = 0xCBF29CE484222325ULL;  // FNV-1a; one Philox call then mixes all bits
  for (const char c : stream) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001B3ULL;
  const auto u = philox(seed, hash, 0);
  return (uint64_t{u[1]} << 32) | u[0];
}

void fill_normal(uint64_t key, uint64_t first, std::span<double> out) {
  size_t done = 0;
  while (done < out.size()) {
    const uint64_t element = first + done;
    const auto block = normal_block(key, element / 4);
    const size_t skip = element % 4;
    const size_t take = std::min(out.size() - done, 4 - skip);
    std::copy_n(block.begin() + static_cast<std::ptrdiff_t>(skip), take,
                out.begin() + static_cast<std::ptrdiff_t>(done));
    done += take;
  }
}

void fill_uniform(uint64_t key, uint64_t step, uint64_t first, std::span<float> out) {
  size_t done = 0;
  while (done < out.size()) {
    const uint64_t element = first + done;
    const auto block = philox(key, element / 4, step);
    const size_t skip = element % 4;
    const size_t take = std::min(out.size() - done, 4 - skip);
    for (size_t i = 0; i < take; ++i) {
      out[done + i] = static_cast<float>(block[skip + i] >> 8) * 0x1p-24F;
    }
    done += take;
  }
}

}  // namespace cleave::inline base
