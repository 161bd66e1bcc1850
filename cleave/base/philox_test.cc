#include "cleave/base/philox.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

namespace cleave::philox_test {
namespace {

// Oracle: Random123's kat_vectors for philox4x32 with 10 rounds.
TEST(Philox, KnownCounters_GiveThePublishedWords) {
  using Words = std::array<uint32_t, 4>;
  EXPECT_EQ(philox(0, 0, 0), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox(~0ULL, ~0ULL, ~0ULL), (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox(0x299f31d0a4093822ULL, 0x85a308d3243f6a88ULL, 0x0370734413198a2eULL),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

// Oracle: the C library's log, cos and sin of the same uniform numbers.
TEST(FillNormal, EveryElement_IsBoxMullerOfItsCounter) {
  std::vector<double> out(4096);
  fill_normal(42, 0, out);
  for (size_t block = 0; block < out.size() / 4; ++block) {
    const auto u = philox(42, block, 0);
    for (size_t pair = 0; pair < 2; ++pair) {
      const double radius = std::sqrt(-2 * std::log((u[2 * pair] + 1.0) * 0x1p-32));
      const double angle = 2 * M_PI * (u[2 * pair + 1] * 0x1p-32);
      EXPECT_NEAR(out[4 * block + 2 * pair], radius * std::cos(angle), 1e-13);
      EXPECT_NEAR(out[4 * block + 2 * pair + 1], radius * std::sin(angle), 1e-13);
    }
  }
}

TEST(FillNormal, AnySubrange_IsThatPartOfTheWhole) {
  std::vector<double> whole(100);
  fill_normal(7, 1000, whole);
  for (size_t first = 0; first < 9; ++first) {
    std::vector<double> part(41);
    fill_normal(7, 1000 + first, part);
    for (size_t i = 0; i < part.size(); ++i) EXPECT_EQ(part[i], whole[first + i]);
  }
}

TEST(FillUniform, AnySubrange_IsThatPartOfTheWhole_AndStepsDiffer) {
  std::vector<float> whole(64), part(17), later(64);
  fill_uniform(7, 3, 0, whole);
  fill_uniform(7, 3, 5, part);
  fill_uniform(7, 4, 0, later);
  for (size_t i = 0; i < part.size(); ++i) EXPECT_EQ(part[i], whole[5 + i]);
  EXPECT_NE(whole, later);
  for (const float u : whole) EXPECT_TRUE(u >= 0 && u < 1);
}

TEST(StreamKey, NamesAndSeeds_GiveDifferentKeys) {
  EXPECT_NE(stream_key(0, "a"), stream_key(0, "b"));
  EXPECT_NE(stream_key(0, "a"), stream_key(1, "a"));
  EXPECT_EQ(stream_key(3, "x"), stream_key(3, "x"));
}

}  // namespace
}  // namespace cleave::philox_test
