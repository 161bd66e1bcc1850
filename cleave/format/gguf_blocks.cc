#include "cleave/format/gguf_blocks.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "cleave/base/error.h"
#include "cleave/base/str.h"

namespace cleave::inline format {
namespace {

struct NumberedName {
  uint32_t number;
  std::string_view name;
};
/// ggml's other types, for messages.
constexpr NumberedName kOtherTypes[] = {
    {3, "Q4_1"},     {6, "Q5_0"},   {7, "Q5_1"},    {9, "Q8_1"},     {10, "Q2_K"},
    {11, "Q3_K"},    {13, "Q5_K"},  {15, "Q8_K"},   {16, "IQ2_XXS"}, {17, "IQ2_XS"},
    {18, "IQ3_XXS"}, {19, "IQ1_S"}, {20, "IQ4_NL"}, {21, "IQ3_S"},   {22, "IQ2_S"},
    {23, "IQ4_XS"},  {24, "I8"},    {25, "I16"},    {26, "I32"},     {27, "I64"},
    {28, "F64"},     {29, "IQ1_M"}, {34, "TQ1_0"},  {35, "TQ2_0"},   {39, "MXFP4"}};

uint8_t byte_at(std::span<const std::byte> block, size_t at) {
  return static_cast<uint8_t>(block[at]);
}

float half_at(std::span<const std::byte> block, size_t at) {
  return float_from_half(
      static_cast<uint16_t>(byte_at(block, at) | (uint16_t{byte_at(block, at + 1)} << 8)));
}

/// 32 elements: scale, 16 bytes of two 4-bit numbers; the second 16 elements in the upper halves.
void decode_q4_0(std::span<const std::byte> block, std::span<float> values) {
  const float scale = half_at(block, 0);
  for (size_t i = 0; i < 16; ++i) {
    const int pair = byte_at(block, 2 + i);
    values[i] = static_cast<float>((pair & 15) - 8) * scale;
    values[i + 16] = static_cast<float>((pair >> 4) - 8) * scale;
  }
}

/// 32 elements: scale, 32 signed bytes.
void decode_q8_0(std::span<const std::byte> block, std::span<float> values) {
  const float scale = half_at(block, 0);
  for (size_t i = 0; i < 32; ++i) {
    values[i] = static_cast<float>(static_cast<int8_t>(byte_at(block, 2 + i))) * scale;
  }
}

struct Q4KPart {
  float step, least;  ///< an element is step * number - least
};

/// Scales of one of the 8 parts of a Q4_K block.
Q4KPart q4_k_part(std::span<const std::byte> block, size_t part) {
  const float scale = half_at(block, 0), min_scale = half_at(block, 2);
  const auto packed = block.subspan(4, 12);
  int factor = 0, minimum = 0;
  if (part < 4) {
    factor = byte_at(packed, part) & 63;
    minimum = byte_at(packed, part + 4) & 63;
  } else {
    factor = (byte_at(packed, part + 4) & 15) | ((byte_at(packed, part - 4) >> 6) << 4);
    minimum = (byte_at(packed, part + 4) >> 4) | ((byte_at(packed, part) >> 6) << 4);
  }
  return {.step = scale * static_cast<float>(factor),
          .least = min_scale * static_cast<float>(minimum)};
}

/// 256 elements in 8 parts: scale of the scales, scale of the minimums, 8 scales and 8 minimums of
/// 6 bits in 12 bytes, 128 bytes of 4-bit numbers; each 32 bytes hold two parts.
void decode_q4_k(std::span<const std::byte> block, std::span<float> values) {
  for (size_t part = 0; part < 8; ++part) {
    const auto [step, least] = q4_k_part(block, part);
    const auto numbers = block.subspan(16 + 32 * (part / 2), 32);
    for (size_t i = 0; i < 32; ++i) {
      const int pair = byte_at(numbers, i);
      const int number = part % 2 == 0 ? pair & 15 : pair >> 4;
      values[32 * part + i] = step * static_cast<float>(number) - least;
    }
  }
}

/// 256 elements in 16 parts: 128 bytes of the lower 4 bits, 64 bytes of the upper 2 bits, 16 signed
/// scales, their scale.
void decode_q6_k(std::span<const std::byte> block, std::span<float> values) {
  const float scale = half_at(block, 208);
  for (size_t i = 0; i < 256; ++i) {
    const size_t half = i / 128, quarter = i % 128 / 32, place = i % 32;
    const int low = byte_at(block, 64 * half + 32 * (quarter % 2) + place) >> (4 * (quarter / 2));
    const int high = byte_at(block, 128 + 32 * half + place) >> (2 * quarter);
    const int number = ((low & 15) | ((high & 3) << 4)) - 32;
    const auto factor = static_cast<int8_t>(byte_at(block, 192 + i / 16));
    values[i] = scale * static_cast<float>(factor) * static_cast<float>(number);
  }
}

}  // namespace

GgufBlock block_of(GgufType type) {
  switch (type) {
    case GgufType::kF32:
      return {.name = "F32", .bytes = 4};
    case GgufType::kF16:
      return {.name = "F16", .bytes = 2, .dtype = DType::kF16};
    case GgufType::kBF16:
      return {.name = "BF16", .bytes = 2, .dtype = DType::kBf16};
    case GgufType::kQ4_0:
      return {.name = "Q4_0", .elements = 32, .bytes = 18};
    case GgufType::kQ8_0:
      return {.name = "Q8_0", .elements = 32, .bytes = 34};
    case GgufType::kQ4_K:
      return {.name = "Q4_K", .elements = 256, .bytes = 144};
    case GgufType::kQ6_K:
      return {.name = "Q6_K", .elements = 256, .bytes = 210};
  }
  CLEAVE_BUG("no such GGUF type: ", static_cast<uint32_t>(type));
}

std::optional<GgufType> gguf_type(uint32_t number) {
  for (const GgufType type : {GgufType::kF32, GgufType::kF16, GgufType::kQ4_0, GgufType::kQ8_0,
                              GgufType::kQ4_K, GgufType::kQ6_K, GgufType::kBF16}) {
    if (static_cast<uint32_t>(type) == number) return type;
  }
  return std::nullopt;
}

std::string gguf_type_name(uint32_t number) {
  if (const auto type = gguf_type(number)) return std::string(block_of(*type).name);
  for (const NumberedName& other : kOtherTypes) {
    if (other.number == number) return std::string(other.name);
  }
  return str("type ", number);
}

bool is_quantized(GgufType type) {
  return block_of(type).elements > 1;
}

void dequantize(GgufType type, std::span<const std::byte> blocks, std::span<float> values) {
  const GgufBlock layout = block_of(type);
  const auto bytes = static_cast<size_t>(layout.bytes);
  const auto elements = static_cast<size_t>(layout.elements);
  CLEAVE_CHECK(blocks.size() % bytes == 0 && values.size() == blocks.size() / bytes * elements,
               Code::kUsage, "blocks of ", blocks.size(), " bytes do not have ", values.size(),
               " elements of ", layout.name);
  for (; !values.empty(); blocks = blocks.subspan(bytes), values = values.subspan(elements)) {
    const auto block = blocks.first(bytes);
    const auto out = values.first(elements);
    switch (type) {
      case GgufType::kQ4_0:
        decode_q4_0(block, out);
        break;
      case GgufType::kQ8_0:
        decode_q8_0(block, out);
        break;
      case GgufType::kQ4_K:
        decode_q4_k(block, out);
        break;
      case GgufType::kQ6_K:
        decode_q6_k(block, out);
        break;
      default:
        CLEAVE_BUG(layout.name, " has no blocks");
    }
  }
}

Int4Group int4_group(GgufType type, std::span<const std::byte> block, size_t index) {
  Int4Group group;
  if (type == GgufType::kQ4_0) {
    group.scale = static_cast<uint16_t>(byte_at(block, 0) | (uint16_t{byte_at(block, 1)} << 8));
    std::copy_n(block.begin() + 2, 16, group.codes.begin());
    return group;
  }
  CLEAVE_CHECK(type == GgufType::kQ4_K, Code::kUsage, block_of(type).name, " is not in 4 bits");
  const auto [step, least] = q4_k_part(block, index);
  group.scale = half_from_float(step);
  group.min = half_from_float(least);
  const auto numbers = block.subspan(16 + 32 * (index / 2), 32);
  const int shift = index % 2 == 0 ? 0 : 4;
  for (size_t i = 0; i < 16; ++i) {
    const int low = (byte_at(numbers, i) >> shift) & 15;
    const int high = (byte_at(numbers, i + 16) >> shift) & 15;
    group.codes[i] = static_cast<std::byte>(low | (high << 4));
  }
  return group;
}

float float_from_half(uint16_t bits) {
  const uint32_t sign = uint32_t{bits & 0x8000U} << 16;
  const uint32_t exponent = (bits >> 10) & 0x1FU, mantissa = bits & 0x3FFU;
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24
    const float value = static_cast<float>(mantissa) * 0x1p-24F;
    return sign != 0 ? -value : value;
  }
  const uint32_t wide = exponent == 31 ? 255 : exponent + 112;
  return std::bit_cast<float>(sign | (wide << 23) | (mantissa << 13));
}

uint16_t half_from_float(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000U);
  const uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) return static_cast<uint16_t>(sign | 0x7E00U);   // NaN
  if (magnitude >= 0x477FF000U) return static_cast<uint16_t>(sign | 0x7C00U);  // from 65520
  if (magnitude < 0x38800000U) {
    // Below 2^-14: adding 0.5 leaves the multiple of 2^-24, rounded to nearest even.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3F000000U));
  }
  const uint32_t rounded = magnitude + 0xFFFU + ((magnitude >> 13) & 1U);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000U) >> 13));
}

}  // namespace cleave::inline format
