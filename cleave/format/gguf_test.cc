#include "cleave/format/gguf.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <random>
#include <span>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/format/gguf_writer.h"
#include "tests/support/gguf_bytes.h"
#include "tests/support/temp_folder.h"
#include "tests/support/thrown.h"

namespace cleave::gguf_test {
namespace {

using test::TempFolder;
using test::gguf::number;
using test::gguf::text;
using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::byte> bytes_of(const std::string& text) {
  std::vector<std::byte> bytes(text.size());
  std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

void write(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

/// The value of a half by its definition.
float half_value(uint16_t bits) {
  const int exponent = (bits >> 10) & 31, mantissa = bits & 1023;
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -24)
                           : exponent == 31
                               ? (mantissa == 0 ? std::numeric_limits<double>::infinity()
                                                : std::numeric_limits<double>::quiet_NaN())
                               : std::ldexp(1024 + mantissa, exponent - 25);
  return static_cast<float>((bits & 0x8000) != 0 ? -magnitude : magnitude);
}

TEST(GgufBlocks, EveryHalf_HasItsValueAndComesBack) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float value = float_from_half(half);
    if (std::isnan(half_value(half))) {
      ASSERT_TRUE(std::isnan(value) && std::isnan(float_from_half(half_from_float(value))));
      continue;
    }
    ASSERT_EQ(value, half_value(half)) << bits;
    ASSERT_EQ(half_from_float(value), half) << bits;
  }
}

TEST(GgufBlocks, FloatBetweenTwoHalfs_BecomesTheNearestAndTheEvenOneOfTwo) {
  for (uint16_t bits = 0; bits < 0x7BFF; ++bits) {
    const double low = static_cast<double>(half_value(bits));
    const double high = static_cast<double>(half_value(static_cast<uint16_t>(bits + 1)));
    const auto between = [&](double part) {
      return half_from_float(static_cast<float>(low + part * (high - low)));
    };
    ASSERT_EQ(between(0.49), bits);
    ASSERT_EQ(between(0.51), bits + 1);
    ASSERT_EQ(between(0.5), bits % 2 == 0 ? bits : bits + 1);
  }
  EXPECT_EQ(half_from_float(65519.9F), 0x7BFF);
  EXPECT_EQ(half_from_float(65520.0F), 0x7C00);
  EXPECT_EQ(half_from_float(1e-9F), 0);
}

// Blocks written by hand: scale 2 is 0x4000 as half, 1 is 0x3C00, 0.5 is 0x3800.
TEST(GgufBlocks, HandWrittenBlocks_HaveTheValuesOfTheFormat) {
  std::array<float, 256> values{};
  std::string q8 = number(0x3800, 2);
  for (int i = 0; i < 32; ++i) q8.push_back(static_cast<char>(i - 16));
  dequantize(GgufType::kQ8_0, bytes_of(q8), std::span(values).first(32));
  for (int i = 0; i < 32; ++i)
    EXPECT_EQ(values[static_cast<size_t>(i)], 0.5F * static_cast<float>(i - 16));

  std::string q4 = number(0x4000, 2);
  for (int i = 0; i < 16; ++i) q4.push_back(static_cast<char>(i | ((15 - i) << 4)));
  dequantize(GgufType::kQ4_0, bytes_of(q4), std::span(values).first(32));
  for (int i = 0; i < 16; ++i) {
    EXPECT_EQ(values[static_cast<size_t>(i)], 2.0F * static_cast<float>(i - 8));
    EXPECT_EQ(values[static_cast<size_t>(i) + 16], 2.0F * static_cast<float>(7 - i));
  }
}

// Numbers in 4 bits and scales of random blocks stand for the decoded elements: exactly in Q4_0; in
// Q4_K the scale and the minimum are rounded to fp16.
TEST(GgufBlocks, Int4Groups_AreTheDecodedElements) {
  uint32_t random = 1;
  const auto next = [&random] { return (random = random * 1664525U + 1013904223U) >> 24; };
  for (const GgufType type : {GgufType::kQ4_0, GgufType::kQ4_K}) {
    const GgufBlock layout = block_of(type);
    std::vector<float> values(static_cast<size_t>(layout.elements));
    for (int repeat = 0; repeat < 20; ++repeat) {
      std::string block;
      for (int64_t i = 0; i < layout.bytes; ++i) block.push_back(static_cast<char>(next()));
      block[1] = static_cast<char>(0x20 + next() % 16);  // a scale of about 0.01
      if (type == GgufType::kQ4_K) block[3] = static_cast<char>(0x20 + next() % 16);
      dequantize(type, bytes_of(block), values);
      for (size_t i = 0; i < values.size(); ++i) {
        const Int4Group group = int4_group(type, bytes_of(block), i / 32);
        const auto pair = static_cast<int>(group.codes[i % 16]);
        const auto number = static_cast<float>(i % 32 < 16 ? pair & 15 : pair >> 4);
        const float scale = float_from_half(group.scale), min = float_from_half(group.min);
        const bool has_min = type == GgufType::kQ4_K;
        const float got = has_min ? number * scale - min : (number - 8) * scale;
        const float bound = has_min ? 0x1p-10F * (15 * scale + min) : 0;
        EXPECT_LE(std::abs(got - values[i]), bound) << layout.name << ' ' << i;
      }
    }
  }
}

// A Q4_K block with scale 1 and minimum scale 0.5; part p has the factor 7p and the minimum 63 - p,
// packed here from the format: the upper 2 bits of the last 4 in the bytes of the first 4.
TEST(GgufBlocks, HandWrittenQ4K_HasItsValues) {
  std::array<uint8_t, 12> packed{};
  for (int p = 0; p < 8; ++p) {
    const int factor = 7 * p, minimum = 63 - p;
    const auto at = static_cast<size_t>(p);
    if (p < 4) {
      packed[at] = static_cast<uint8_t>(packed[at] | factor);
      packed[at + 4] = static_cast<uint8_t>(packed[at + 4] | minimum);
    } else {
      packed[at + 4] = static_cast<uint8_t>((factor & 15) | ((minimum & 15) << 4));
      packed[at - 4] = static_cast<uint8_t>(packed[at - 4] | ((factor >> 4) << 6));
      packed[at] = static_cast<uint8_t>(packed[at] | ((minimum >> 4) << 6));
    }
  }
  std::string block = number(0x3C00, 2) + number(0x3800, 2);
  block.append(packed.begin(), packed.end());
  for (int i = 0; i < 128; ++i) block.push_back(static_cast<char>((i % 16) | ((15 - i % 16) << 4)));
  std::array<float, 256> values{};
  dequantize(GgufType::kQ4_K, bytes_of(block), values);
  for (int i = 0; i < 256; ++i) {
    const int p = i / 32, number = p % 2 == 0 ? i % 16 : 15 - i % 16;
    EXPECT_EQ(values[static_cast<size_t>(i)],
              static_cast<float>(7 * p * number) - 0.5F * static_cast<float>(63 - p));
  }
}

// A Q6_K block with scale 0.5 whose part p has the factor p - 8; only one element per block is not
// the least number, so that its place shows.
TEST(GgufBlocks, EveryPlaceOfQ6K_HasItsBits) {
  for (int at = 0; at < 256; ++at) {
    std::string block(210, '\0');
    for (int p = 0; p < 16; ++p) block[static_cast<size_t>(192 + p)] = static_cast<char>(p - 8);
    block.replace(208, 2, number(0x3800, 2));
    const int half = at / 128, within = at % 128;  // number 0b100101 = 37
    const auto low = static_cast<size_t>(64 * half + within % 64);
    const auto high = static_cast<size_t>(128 + 32 * half + within % 32);
    block[low] = static_cast<char>(5 << (within < 64 ? 0 : 4));
    block[high] = static_cast<char>(2 << (2 * (within / 32)));
    std::array<float, 256> values{};
    dequantize(GgufType::kQ6_K, bytes_of(block), values);
    for (int i = 0; i < 256; ++i) {
      const int number = i == at ? 37 - 32 : -32;
      ASSERT_EQ(values[static_cast<size_t>(i)], 0.5F * static_cast<float>((i / 16 - 8) * number))
          << i << " of " << at;
    }
  }
}

/// Rows of many kinds: normal, of one sign, constant, with one large value, tiny, zero.
std::vector<float> samples(size_t blocks) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<float> values;
  for (size_t block = 0; block < blocks; ++block) {
    const float size = std::pow(10.0F, static_cast<float>(block % 9) - 4);
    for (size_t i = 0; i < 256; ++i) {
      float value = normal(random) * size;
      if (block % 5 == 1) value = std::abs(value);
      if (block % 5 == 2) value = -std::abs(value);
      if (block % 5 == 3 && i / 32 % 2 == 0) value = size;
      if (block % 5 == 4 && i == 77) value = 100 * size;
      if (block % 11 == 0 && i / 16 % 3 == 0) value = 0;
      values.push_back(value);
    }
  }
  values.insert(values.end(), 256, 0.0F);
  return values;
}

struct Coded {
  std::vector<std::byte> blocks;
  std::vector<float> decoded;
};

Coded coded(GgufType type, const std::vector<float>& values) {
  const GgufBlock block = block_of(type);
  Coded result{std::vector<std::byte>(values.size() / static_cast<size_t>(block.elements) *
                                      static_cast<size_t>(block.bytes)),
               std::vector<float>(values.size())};
  quantize(type, values, result.blocks, "test");
  dequantize(type, result.blocks, result.decoded);
  return result;
}

float half_at(const std::vector<std::byte>& bytes, size_t at) {
  return half_value(
      static_cast<uint16_t>(static_cast<int>(bytes[at]) | (static_cast<int>(bytes[at + 1]) << 8)));
}

// Bound: half a step, and the rounding of the step to a half for numbers up to 127.
TEST(GgufBlocks, QuantizedQ8_IsWithinItsBound) {
  const std::vector<float> values = samples(64);
  const Coded result = coded(GgufType::kQ8_0, values);
  for (size_t from = 0; from < values.size(); from += 32) {
    float most = 0;
    for (size_t i = from; i < from + 32; ++i) most = std::max(most, std::abs(values[i]));
    const double step = static_cast<double>(most) / 127;
    const double bound = step * (0.5 + 127.0 / 2048) * (1 + 1e-6) + 127 * 0x1p-25;
    for (size_t i = from; i < from + 32; ++i) {
      ASSERT_LE(std::abs(static_cast<double>(result.decoded[i]) - static_cast<double>(values[i])),
                bound);
    }
  }
}

double rms(const std::vector<float>& a, const std::vector<float>& b, size_t from, size_t count) {
  double sum = 0;
  for (size_t i = from; i < from + count; ++i) {
    const double difference = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    sum += difference * difference;
  }
  return std::sqrt(sum / static_cast<double>(count));
}

// The step with which the numbers 0 to 15 reach from the least to the largest value, where factor
// and minimum are rounded up: by less than d and dmin, which the blocks have.
TEST(GgufBlocks, QuantizedQ4K_IsWithinItsBound) {
  const std::vector<float> values = samples(64);
  const Coded result = coded(GgufType::kQ4_K, values);
  for (size_t from = 0; from < values.size(); from += 32) {
    const size_t block = from / 256 * 144;
    const double d = static_cast<double>(half_at(result.blocks, block));
    const double dmin = static_cast<double>(half_at(result.blocks, block + 2));
    const auto begin = values.begin() + static_cast<std::ptrdiff_t>(from);
    const double low = std::min(0.0, static_cast<double>(*std::min_element(begin, begin + 32)));
    const double high = static_cast<double>(*std::max_element(begin, begin + 32));
    const double step = std::max(0.0, high - low + dmin) / 15 + d;
    ASSERT_LE(rms(values, result.decoded, from, 32), step / 2 * (1 + 1e-5)) << from;
  }
}

TEST(GgufBlocks, QuantizedQ6K_IsWithinItsBound) {
  const std::vector<float> values = samples(64);
  const Coded result = coded(GgufType::kQ6_K, values);
  for (size_t from = 0; from < values.size(); from += 16) {
    const double d = static_cast<double>(half_at(result.blocks, from / 256 * 210 + 208));
    float most = 0;
    for (size_t i = from; i < from + 16; ++i) most = std::max(most, std::abs(values[i]));
    const double step = static_cast<double>(most) / 31 + d;
    ASSERT_LE(rms(values, result.decoded, from, 16), step / 2 * (1 + 1e-5)) << from;
  }
}

/// The bits of numbers of 6 bits in a Q4_K block: factor and minimum of a part.
std::pair<int, int> numbers_of_part(std::span<const std::byte> block, size_t part) {
  const auto at = [&](size_t i) { return static_cast<int>(block[4 + i]); };
  if (part < 4) return {at(part) & 63, at(part + 4) & 63};
  return {(at(part + 4) & 15) | ((at(part - 4) >> 6) << 4),
          (at(part + 4) >> 4) | ((at(part) >> 6) << 4)};
}

/// The squared error of values with a step and a minimum, all of them rounded by std::nearbyint.
double error_of(std::span<const float> values, float step, float least) {
  double sum = 0;
  for (const float value : values) {
    const float place = step == 0 ? 0 : std::nearbyint((value + least) * (1 / step));
    const float difference = step * std::clamp(place, 0.0F, 15.0F) - least - value;
    sum += static_cast<double>(difference) * static_cast<double>(difference);
  }
  return sum;
}

// Oracle: all of the 12 pairs of factor and minimum, each with all values; the first of the best.
TEST(GgufBlocks, QuantizedQ4K_HasTheBestFactorAndMinimum) {
  const std::vector<float> values = samples(64);
  const Coded result = coded(GgufType::kQ4_K, values);
  for (size_t from = 0; from < values.size(); from += 32) {
    const auto block = std::span(result.blocks).subspan(from / 256 * 144, 144);
    const auto part = std::span(values).subspan(from, 32);
    const float scale = half_at(result.blocks, from / 256 * 144);
    const float min_scale = half_at(result.blocks, from / 256 * 144 + 2);
    const auto up = [](float a, float b) {
      return b == 0 ? 0 : std::min(63, static_cast<int>(std::ceil(a / b)));
    };
    const auto [low, high] = std::minmax_element(part.begin(), part.end());
    const int most_minimum = up(-std::min(0.0F, *low), min_scale);
    const int most_factor =
        up(std::max(0.0F, *high + min_scale * static_cast<float>(most_minimum)) / 15, scale);
    std::pair<int, int> best;
    double least = std::numeric_limits<double>::infinity();
    for (int minimum = most_minimum; minimum >= std::max(0, most_minimum - 2); --minimum) {
      for (int factor = most_factor; factor >= std::max(0, most_factor - 3); --factor) {
        const double error = error_of(part, scale * static_cast<float>(factor),
                                      min_scale * static_cast<float>(minimum));
        if (error < least) best = {factor, minimum};
        least = std::min(least, error);
      }
    }
    ASSERT_EQ(numbers_of_part(block, from % 256 / 32), best) << from;
    double stored = 0;
    for (size_t i = from; i < from + 32; ++i) {
      const double difference = static_cast<double>(result.decoded[i] - values[i]);
      stored += difference * difference;
    }
    ASSERT_NEAR(stored, least, 1e-5 * least + 1e-30) << from;
  }
}

TEST(GgufBlocks, ValuesThatNoBlockCanStore_AreRefused) {
  std::vector<float> values(256, 1);
  for (const GgufType type : {GgufType::kQ8_0, GgufType::kQ4_K, GgufType::kQ6_K}) {
    values[3] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_THAT(test::thrown_by([&] { coded(type, values); }).what(), HasSubstr("NaN or infinite"));
    values[3] = 3e38F;
    EXPECT_THAT(test::thrown_by([&] { coded(type, values); }).what(), HasSubstr("too large"));
  }
}

/// A file with a metadata value of each kind and three tensors, written here by hand.
std::string whole_file(uint64_t version = 3) {
  std::string head = "GGUF" + number(version, 4) + number(3, 8) + number(9, 8);
  head += text("general.architecture") + number(8, 4) + text("test");
  head += text("u8") + number(0, 4) + number(200, 1);
  head += text("i16") + number(3, 4) + number(static_cast<uint64_t>(-5), 2);
  head += text("f32") + number(6, 4) + number(0x3FC00000, 4);  // 1.5
  head += text("bool") + number(7, 4) + number(1, 1);
  head += text("strings") + number(9, 4) + number(8, 4) + number(2, 8) + text("a") + text("");
  head += text("ints") + number(9, 4) + number(5, 4) + number(2, 8) +
          number(static_cast<uint64_t>(-1), 4) + number(7, 4);
  head += text("u64") + number(10, 4) + number(uint64_t{1} << 40, 8);
  head += text("f64") + number(12, 4) + number(0xC000000000000000, 8);  // -2
  // [2, 3] F32 (24 bytes), [2] F16 (4 bytes), [2, 32] Q8_0 (68 bytes); sizes are reversed.
  head += text("a") + number(2, 4) + number(3, 8) + number(2, 8) + number(0, 4) + number(0, 8);
  head += text("b") + number(1, 4) + number(2, 8) + number(1, 4) + number(32, 8);
  head += text("c") + number(2, 4) + number(32, 8) + number(2, 8) + number(8, 4) + number(64, 8);
  head.resize((head.size() + 31) / 32 * 32);
  for (int i = 0; i < 6; ++i) {
    const auto value = static_cast<float>(i);
    uint32_t bits = 0;
    std::memcpy(&bits, &value, 4);
    head += number(bits, 4);
  }
  head += std::string(8, '\0') + number(0x3C00, 2) + number(0xC000, 2) + std::string(28, '\0');
  for (int row = 0; row < 2; ++row) {
    head += number(0x3C00, 2);
    for (int i = 0; i < 32; ++i) head.push_back(static_cast<char>(row == 0 ? i : -i));
  }
  return head;
}

std::vector<float> floats(const TensorSource& source, std::string_view name,
                          const std::vector<Slice>& slices = {}) {
  std::vector<float> values(block_bytes(source.at(name), slices) / sizeof(float));
  source.read_block(name, slices, std::as_writable_bytes(std::span(values)));
  return values;
}

TEST(Gguf, HandWrittenFile_HasItsMetadataAndTensors) {
  const TempFolder folder;
  for (const uint64_t version : {uint64_t{2}, uint64_t{3}}) {
    write(folder / "m.gguf", whole_file(version));
    const Gguf file = Gguf::open(folder / "m.gguf");
    const GgufMetadata& m = file.metadata();
    EXPECT_EQ(m.string_at("general.architecture"), "test");
    EXPECT_EQ(m.int_at("u8"), 200);
    EXPECT_EQ(m.int_at("i16"), -5);
    EXPECT_EQ(m.int_at("u64"), int64_t{1} << 40);
    EXPECT_EQ(m.number_or("f32", 0), 1.5);
    EXPECT_EQ(m.number_or("f64", 0), -2);
    EXPECT_TRUE(m.bool_or("bool", false));
    EXPECT_THAT(m.strings_at("strings"), ElementsAre("a", ""));
    EXPECT_THAT(m.ints_at("ints"), ElementsAre(-1, 7));
    EXPECT_THAT(file.at("a").shape, ElementsAre(2, 3));
    EXPECT_EQ(file.at("b").dtype, DType::kF16);
    EXPECT_EQ(file.at("c").dtype, DType::kF32);
    EXPECT_THAT(floats(file, "a"), ElementsAre(0, 1, 2, 3, 4, 5));
    EXPECT_THAT(floats(file, "a", {{1, {{1, 2}}}}), ElementsAre(1, 4));
    EXPECT_THAT(floats(file, "c", {{0, {{1, 2}}}, {1, {{3, 5}, {31, 32}}}}),
                ElementsAre(-3, -4, -31));
  }
}

TEST(Gguf, MetadataOfAnotherType_IsRefusedByItsKey) {
  const TempFolder folder;
  write(folder / "m.gguf", whole_file());
  const Gguf file = Gguf::open(folder / "m.gguf");
  EXPECT_THAT(test::thrown_by([&] { (void)file.metadata().int_at("f32"); }).what(),
              HasSubstr("m.gguf: metadata 'f32': expected an integer"));
  EXPECT_THAT(test::thrown_by([&] { (void)file.metadata().string_at("none"); }).what(),
              HasSubstr("metadata 'none': it is missing"));
}

// The planned head is, byte for byte, the hand-written one.
TEST(Gguf, PlannedFile_IsTheHandWrittenOne) {
  GgufMetadata metadata;
  metadata.add_string("general.architecture", "test");
  metadata.add_u32("number", 77);
  metadata.add_f32("real", 1.5);
  metadata.add_bool("flag", true);
  metadata.add("list", {GgufKind::kString, GgufValue::Strings{"x"}});
  metadata.add("types", {GgufKind::kI32, GgufValue::Ints{-1}});
  metadata.add("scores", {GgufKind::kF32, GgufValue::Numbers{-2}});
  GgufTensor a, b;
  a.name = "a";
  a.shape = {2, 3};
  b.name = "b";
  b.shape = {4, 256};
  b.type = GgufType::kQ6_K;
  const GgufPlan plan(metadata, {a, b});
  std::string head = "GGUF" + number(3, 4) + number(2, 8) + number(7, 8);
  head += text("general.architecture") + number(8, 4) + text("test");
  head += text("number") + number(4, 4) + number(77, 4);
  head += text("real") + number(6, 4) + number(0x3FC00000, 4);
  head += text("flag") + number(7, 4) + number(1, 1);
  head += text("list") + number(9, 4) + number(8, 4) + number(1, 8) + text("x");
  head += text("types") + number(9, 4) + number(5, 4) + number(1, 8) + number(0xFFFFFFFF, 4);
  head += text("scores") + number(9, 4) + number(6, 4) + number(1, 8) + number(0xC0000000, 4);
  head += text("a") + number(2, 4) + number(3, 8) + number(2, 8) + number(0, 4) + number(0, 8);
  head += text("b") + number(2, 4) + number(256, 8) + number(4, 8) + number(14, 4) + number(32, 8);
  head.resize((head.size() + 31) / 32 * 32);
  EXPECT_EQ(plan.head(), head);
  EXPECT_EQ(plan.tensors()[1].begin, head.size() + 32);
  EXPECT_EQ(plan.total_bytes(), head.size() + 32 + 864);  // 840 bytes, to a multiple of 32
}

TEST(Gguf, PlannedRowsThatFillNoBlock_AreRefused) {
  GgufTensor tensor;
  tensor.name = "t";
  tensor.shape = {2, 100};
  tensor.type = GgufType::kQ8_0;
  EXPECT_THAT(test::thrown_by([&] { const GgufPlan plan({}, {tensor}); }).what(),
              HasSubstr("rows of 100 elements; Q8_0 needs multiples of 32"));
}

}  // namespace
}  // namespace cleave::gguf_test
