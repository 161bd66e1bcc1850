// Encoders of GGUF's quantised blocks. A part of a block is encoded with a few steps near the
// smallest one that reaches all of its values, and the one with the least squared error is kept.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "cleave/base/error.h"
#include "cleave/format/gguf_blocks.h"

namespace cleave::inline format {
namespace {

constexpr std::string_view kTooLarge =
    " has values too large for a quantised type; choose the dtype fp32 or bf16";

void put(std::span<std::byte> block, size_t at, int value) {
  block[at] = static_cast<std::byte>(value & 255);
}

void add_bits(std::span<std::byte> block, size_t at, int value) {
  block[at] |= static_cast<std::byte>(value & 255);
}

void put_half(std::span<std::byte> block, size_t at, uint16_t bits) {
  put(block, at, bits & 255);
  put(block, at + 1, bits >> 8);
}

/// The least half that is at least `value` >= 0. Throws Error(kFormat) above the largest half.
uint16_t half_from_above(float value, const std::string& what) {
  uint16_t bits = half_from_float(value);
  if (float_from_half(bits) < value) ++bits;  // the halves in order of their values
  CLEAVE_CHECK(std::isfinite(float_from_half(bits)), Code::kFormat, what, kTooLarge);
  return bits;
}

/// 32 values: max |value| / 127 is the step.
void encode_q8_0(std::span<const float> values, std::span<std::byte> block,
                 const std::string& what) {
  float most = 0;
  for (const float value : values) most = std::max(most, std::abs(value));
  const float step = most / 127;
  const uint16_t half = half_from_float(step);
  const float stored = float_from_half(half);
  CLEAVE_CHECK(std::isfinite(stored), Code::kFormat, what, kTooLarge);
  const float inverse = stored == 0 ? 0 : 1 / step;
  put_half(block, 0, half);
  for (size_t i = 0; i < values.size(); ++i) {
    put(block, 2 + i, static_cast<int>(std::round(values[i] * inverse)));
  }
}

/// The integers of a part: value = step * number - least.
struct Numbers {
  std::array<int8_t, 32> at{};
  double error = 0;  ///< sum of squares
};

struct Grid {
  float step = 0, least = 0;
  int low = 0, high = 0;  ///< of the numbers
};

constexpr double kNoLimit = std::numeric_limits<double>::infinity();

/// The nearest integer, ties to even, of a number below 2^22: there the sum has no bits after the
/// point. Without SSE4.1, std::nearbyint is a function call. Larger numbers stay large.
float rounded(float value) {
  constexpr float kNoFraction = 12582912.0F;  // 1.5 * 2^23
  return (value + kNoFraction) - kNoFraction;
}

/// The numbers nearest to at most 32 values. Of numbers whose error reaches `limit` the rest is not
/// computed: a sum of squares does not fall.
Numbers nearest(std::span<const float> values, const Grid& grid, double limit) {
  constexpr size_t kStep = 8;
  Numbers numbers;
  double error = 0;
  const float inverse = grid.step == 0 ? 0 : 1 / grid.step;
  const auto low = static_cast<float>(grid.low), high = static_cast<float>(grid.high);
  std::array<float, kStep> differences{};
  for (size_t first = 0; first < values.size(); first += kStep) {
    for (size_t i = 0; i < kStep; ++i) {
      const float value = values[first + i];
      const float place = rounded((value + grid.least) * inverse);
      const float number = std::clamp(place, low, high);
      numbers.at[first + i] = static_cast<int8_t>(number);
      differences[i] = grid.step * number - grid.least - value;
    }
    for (const float difference : differences) {
      error += static_cast<double>(difference) * static_cast<double>(difference);
    }
    if (error >= limit) break;
  }
  numbers.error = error;
  return numbers;
}

int ceil_div(float value, float by, int most) {
  return by == 0 ? 0 : std::min(most, static_cast<int>(std::ceil(value / by)));
}

/// A part of a Q4_K block.
struct Q4Part {
  std::span<const float> values;
  int factor = 0, minimum = 0;  ///< of 6 bits
  Numbers numbers{};
};

/// Chooses factor and minimum near the given ones, which reach all values.
void refine(Q4Part& part, float scale, float min_scale) {
  const int most_factor = part.factor, most_minimum = part.minimum;
  double least_error = kNoLimit;
  for (int minimum = most_minimum; minimum >= std::max(0, most_minimum - 2); --minimum) {
    for (int factor = most_factor; factor >= std::max(0, most_factor - 3); --factor) {
      const Numbers numbers = nearest(part.values,
                                      {.step = scale * static_cast<float>(factor),
                                       .least = min_scale * static_cast<float>(minimum),
                                       .low = 0,
                                       .high = 15},
                                      least_error);
      if (numbers.error >= least_error) continue;
      least_error = numbers.error;
      part.factor = factor;
      part.minimum = minimum;
      part.numbers = numbers;
    }
  }
}

void pack_q4_k(const std::array<Q4Part, 8>& parts, std::span<std::byte> block) {
  const auto packed = block.subspan(4, 12);
  for (size_t i = 0; i < 4; ++i) {
    put(packed, i, parts[i].factor | ((parts[i + 4].factor >> 4) << 6));
    put(packed, i + 4, parts[i].minimum | ((parts[i + 4].minimum >> 4) << 6));
    put(packed, i + 8, (parts[i + 4].factor & 15) | ((parts[i + 4].minimum & 15) << 4));
  }
  for (size_t pair = 0; pair < 4; ++pair) {
    for (size_t i = 0; i < 32; ++i) {
      const auto low = static_cast<uint8_t>(parts[2 * pair].numbers.at[i]);
      const auto high = static_cast<uint8_t>(parts[2 * pair + 1].numbers.at[i]);
      put(block, 16 + 32 * pair + i, low | (high << 4));
    }
  }
}

void encode_q4_k(std::span<const float> values, std::span<std::byte> block,
                 const std::string& what) {
  std::array<Q4Part, 8> parts;
  std::array<float, 8> least{};
  for (size_t i = 0; i < 8; ++i) {
    parts[i].values = values.subspan(32 * i, 32);
    least[i] = -std::min(0.0F, *std::min_element(parts[i].values.begin(), parts[i].values.end()));
  }
  const uint16_t min_half =
      half_from_above(*std::max_element(least.begin(), least.end()) / 63, what);
  const float min_scale = float_from_half(min_half);
  std::array<float, 8> steps{};
  for (size_t i = 0; i < 8; ++i) {
    parts[i].minimum = ceil_div(least[i], min_scale, 63);
    const float most = *std::max_element(parts[i].values.begin(), parts[i].values.end());
    steps[i] = std::max(0.0F, most + min_scale * static_cast<float>(parts[i].minimum)) / 15;
  }
  const uint16_t half = half_from_above(*std::max_element(steps.begin(), steps.end()) / 63, what);
  const float scale = float_from_half(half);
  for (size_t i = 0; i < 8; ++i) {
    parts[i].factor = ceil_div(steps[i], scale, 63);
    refine(parts[i], scale, min_scale);
  }
  put_half(block, 0, half);
  put_half(block, 2, min_half);
  pack_q4_k(parts, block);
}

void pack_q6_k(std::span<const int8_t> numbers, std::span<std::byte> block) {
  std::fill_n(block.begin(), 192, std::byte{0});
  for (size_t i = 0; i < 256; ++i) {
    const size_t half = i / 128, quarter = i % 128 / 32, place = i % 32;
    const int number = numbers[i] + 32;
    add_bits(block, 64 * half + 32 * (quarter % 2) + place, (number & 15) << (4 * (quarter / 2)));
    add_bits(block, 128 + 32 * half + place, (number >> 4) << (2 * quarter));
  }
}

void encode_q6_k(std::span<const float> values, std::span<std::byte> block,
                 const std::string& what) {
  std::array<float, 16> steps{};
  for (size_t i = 0; i < 256; ++i) {
    steps[i / 16] = std::max(steps[i / 16], std::abs(values[i]) / 31);
  }
  const uint16_t half = half_from_above(*std::max_element(steps.begin(), steps.end()) / 127, what);
  const float scale = float_from_half(half);
  std::array<int8_t, 256> chosen{};
  for (size_t part = 0; part < 16; ++part) {
    const int most = ceil_div(steps[part], scale, 127);
    Numbers best;
    int best_factor = -1;
    double least_error = kNoLimit;
    for (int factor = most; factor >= std::max(0, most - 3); --factor) {
      const Numbers numbers = nearest(
          values.subspan(16 * part, 16),
          {.step = scale * static_cast<float>(factor), .low = -32, .high = 31}, least_error);
      if (numbers.error >= least_error) continue;
      least_error = numbers.error;
      best = numbers;
      best_factor = factor;
    }
    put(block, 192 + part, best_factor);
    std::copy_n(best.at.begin(), 16, chosen.begin() + static_cast<std::ptrdiff_t>(16 * part));
  }
  pack_q6_k(chosen, block);
  put_half(block, 208, half);
}

}  // namespace

void quantize(GgufType type, std::span<const float> values, std::span<std::byte> blocks,
              const std::string& what) {
  const GgufBlock layout = block_of(type);
  const auto bytes = static_cast<size_t>(layout.bytes);
  const auto elements = static_cast<size_t>(layout.elements);
  CLEAVE_CHECK(blocks.size() % bytes == 0 && values.size() == blocks.size() / bytes * elements,
               Code::kUsage, values.size(), " elements do not fill ", blocks.size(), " bytes of ",
               layout.name);
  const bool is_finite =
      std::all_of(values.begin(), values.end(), [](float value) { return std::isfinite(value); });
  CLEAVE_CHECK(is_finite, Code::kFormat, what,
               " has NaN or infinite values, which no quantised type can store");
  for (; !values.empty(); blocks = blocks.subspan(bytes), values = values.subspan(elements)) {
    const auto block = blocks.first(bytes);
    const auto in = values.first(elements);
    switch (type) {
      case GgufType::kQ8_0:
        encode_q8_0(in, block, what);
        break;
      case GgufType::kQ4_K:
        encode_q4_k(in, block, what);
        break;
      case GgufType::kQ6_K:
        encode_q6_k(in, block, what);
        break;
      default:
        CLEAVE_BUG(layout.name, " is not written");
    }
  }
}

}  // namespace cleave::inline format
