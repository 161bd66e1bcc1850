#include "tests/support/float16.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

namespace cleave::float16_test {
namespace {

/// The value of an fp16 by its definition.
float value_of(uint16_t bits) {
  const int exponent = (bits >> 10) & 31, mantissa = bits & 1023;
  const float sign = (bits & 0x8000) != 0 ? -1.0F : 1.0F;
  if (exponent == 31) {
    return mantissa == 0 ? sign * std::numeric_limits<float>::infinity() : std::nanf("");
  }
  return exponent == 0 ? sign * std::ldexp(static_cast<float>(mantissa), -24)
                       : sign * std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25);
}

TEST(Float16, EveryHalf_WidensToItsValueAndBack) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float want = value_of(half), got = fp16_to_fp32(half);
    if (std::isnan(want)) {
      EXPECT_TRUE(std::isnan(got)) << bits;
      EXPECT_TRUE(std::isnan(fp16_to_fp32(fp32_to_fp16(got)))) << bits;
      continue;
    }
    EXPECT_EQ(got, want) << bits;
    EXPECT_EQ(std::signbit(got), std::signbit(want)) << bits;
    EXPECT_EQ(fp32_to_fp16(got), half) << bits;
  }
}

TEST(Float16, HalfwayBetweenTwoHalves_RoundsToTheEvenOne) {
  for (uint32_t bits = 0; bits < 0x7bff; ++bits) {
    const float below = value_of(static_cast<uint16_t>(bits));
    const float above = value_of(static_cast<uint16_t>(bits + 1));
    const float middle = below + (above - below) / 2;
    EXPECT_EQ(fp32_to_fp16(middle), bits + bits % 2) << bits;
    EXPECT_EQ(fp32_to_fp16(std::nextafter(middle, 0.0F)), bits) << bits;
    EXPECT_EQ(fp32_to_fp16(std::nextafter(middle, 1e9F)), bits + 1) << bits;
  }
}

TEST(Float16, TooLarge_BecomesInfinity) {
  EXPECT_EQ(fp32_to_fp16(65519.996F), 0x7bff);
  EXPECT_EQ(fp32_to_fp16(65520.0F), 0x7c00);
  EXPECT_EQ(fp32_to_fp16(-1e30F), 0xfc00);
}

TEST(Bfloat16, HalfwayBetweenTwo_RoundsToTheEvenOne) {
  for (uint32_t bits = 0; bits < 0x7f7f; ++bits) {
    const float middle = std::bit_cast<float>((bits << 16) + 0x8000U);
    EXPECT_EQ(fp32_to_bf16(middle), bits + bits % 2) << bits;
    EXPECT_EQ(fp32_to_bf16(-std::nextafter(middle, 0.0F)), bits | 0x8000U) << bits;
    EXPECT_EQ(bf16_to_fp32(static_cast<uint16_t>(bits)), std::bit_cast<float>(bits << 16));
  }
}

TEST(Bfloat16, Nan_StaysNan) {
  const float odd_nan = std::bit_cast<float>(0x7f800001U);
  EXPECT_TRUE(std::isnan(bf16_to_fp32(fp32_to_bf16(odd_nan))));
  EXPECT_EQ(fp32_to_bf16(std::numeric_limits<float>::infinity()), 0x7f80);
}

}  // namespace
}  // namespace cleave::float16_test
