#include "cleave/nn/rotary.h"

#include <cmath>
#include <numbers>
#include <tuple>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/support/golden.h"
#include "tests/support/ranks.h"
#include "tests/support/thrown.h"

// Oracle: multiplication of complex numbers a + ib by exp(i position frequency).
namespace cleave::rotary_test {
namespace {

using test::largest_difference;
using test::leaf_of;
using test::numbers;

/// x [B, H, T, K], positions [T].
Tensor as_complex(const Tensor& x, const Tensor& positions, const Tensor& frequencies) {
  const int64_t half = x.size(-1) / 2;
  const Tensor angles = at::outer(positions.to(at::kDouble), frequencies);
  const Tensor turn = at::polar(at::ones_like(angles), angles);
  const Tensor z = at::complex(x.narrow(-1, 0, half), x.narrow(-1, half, half)) * turn;
  return at::cat({at::real(z), at::imag(z)}, -1);
}

Tensor plain_frequencies(int64_t head_dim, double theta) {
  std::vector<double> f;
  for (int64_t i = 0; i < head_dim / 2; ++i) {
    f.push_back(
        std::exp(-std::log(theta) * 2.0 * static_cast<double>(i) / static_cast<double>(head_dim)));
  }
  return at::tensor(f, at::kDouble);
}

TEST(Rotary, Apply_RotatesHalvesByPositionTimesFrequency) {
  Rotary rotary({.head_dim = 8, .theta = 10000});
  const Tensor frequencies = plain_frequencies(8, 10000);
  EXPECT_LE(largest_difference(rotary.frequencies(), frequencies), 1e-15);
  const Tensor x = numbers({2, 3, 4, 8}, 1);
  // 300 and 5000 make the tables grow; then small positions again.
  for (const auto& at_positions : {at::tensor({0, 1, 2, 300}, at::kLong),
                                   at::tensor({7, 5000, 5, 5}, at::kLong), at::arange(4)}) {
    EXPECT_LE(largest_difference(apply_rotary(x, rotary.angles(at_positions, x)),
                                 as_complex(x, at_positions, frequencies)),
              1e-12);
  }
}

TEST(Rotary, RangeOfPositions_EqualsTheirList) {
  Rotary rotary({.head_dim = 8, .theta = 10000});
  const Tensor x = numbers({2, 3, 4, 8}, 1);
  for (const int64_t begin : {0, 5, 1000, 3}) {
    const Tensor positions = at::arange(begin, begin + 4);
    EXPECT_LE(largest_difference(apply_rotary(x, rotary.angles(Range{begin, begin + 4}, x)),
                                 as_complex(x, positions, plain_frequencies(8, 10000))),
              1e-12);
  }
}

TEST(Rotary, PositionsPerSequence_RotateEachSequenceByItsOwn) {
  Rotary rotary({.head_dim = 4, .theta = 100});
  const Tensor x = numbers({2, 3, 2, 4}, 1);
  const Tensor positions = at::tensor({0, 1, 5, 9}, at::kLong).view({2, 2});
  const Tensor got = apply_rotary(x, rotary.angles(positions, x));
  for (int64_t b = 0; b < 2; ++b) {
    EXPECT_LE(largest_difference(got[b], as_complex(x[b], positions[b], plain_frequencies(4, 100))),
              1e-14);
  }
}

TEST(Rotary, PositionsOfBatchOne_AreBroadcast) {
  Rotary rotary({.head_dim = 16, .theta = 100});
  const Tensor positions = at::tensor({0, 1, 5, 9, 2}, at::kLong);
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {  // Cleave's kernel and libtorch's
    const Tensor x = numbers({4, 3, 5, 16}, 1).to(type);
    EXPECT_TRUE(at::equal(apply_rotary(x, rotary.angles(positions.unsqueeze(0), x)),
                          apply_rotary(x, rotary.angles(positions, x))));
  }
}

TEST(Rotary, PositionsThatDoNotFit_AreRefused) {
  Rotary rotary({.head_dim = 16, .theta = 100});
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    const Tensor x = numbers({4, 3, 5, 16}, 1).to(type);
    for (const std::vector<int64_t>& shape : {std::vector<int64_t>{4}, {2, 5}, {4, 1}}) {
      const Tensor positions = at::zeros(shape, at::kLong);
      EXPECT_EQ(test::thrown_by([&] {
                  std::ignore = apply_rotary(x, rotary.angles(positions, x));
                }).code(),
                Code::kShape);
    }
  }
}

TEST(Rotary, AnglesThatAreViews_RotateLikeTheirCopies) {
  const Tensor angles = numbers({8, 5}, 2).t();  // [T, K/2]
  const Tensor x = numbers({2, 3, 5, 16}, 1);
  const Tensor turn = at::polar(at::ones_like(angles), angles);
  const Tensor z = at::complex(x.narrow(-1, 0, 8), x.narrow(-1, 8, 8)) * turn;
  const Tensor want = at::cat({at::real(z), at::imag(z)}, -1);
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    const RotaryAngles views{.cos = angles.cos().to(type), .sin = angles.sin().to(type)};
    ASSERT_FALSE(views.cos.is_contiguous());
    EXPECT_LE(largest_difference(apply_rotary(x.to(type), views), want), 1e-5) << type;
    const RotaryAngles unequal{.cos = views.cos, .sin = views.sin.narrow(0, 0, 4)};
    EXPECT_EQ(test::thrown_by([&] { std::ignore = apply_rotary(x.to(type), unequal); }).code(),
              Code::kShape);
  }
}

// A rotation is orthogonal, so its gradient is the inverse rotation.
TEST(Rotary, Gradient_IsTheInverseRotation) {
  Rotary rotary({.head_dim = 6, .theta = 50});
  const Tensor frequencies = plain_frequencies(6, 50);
  const Tensor x = leaf_of(numbers({2, 3, 4, 6}, 1)), g = numbers({2, 3, 4, 6}, 2);
  const Tensor positions = at::tensor({3, 1, 4, 15}, at::kLong);
  (apply_rotary(x, rotary.angles(positions, x)) * g).sum().backward();
  EXPECT_LE(largest_difference(x.grad(), as_complex(g, positions, -frequencies)), 1e-13);
}

TEST(Rotary, HalfPrecision_UsesTablesOfItsType) {
  Rotary rotary({.head_dim = 8, .theta = 10000});
  const Tensor x = numbers({1, 2, 4, 8}, 1);
  const Tensor positions = at::arange(4);
  const Tensor want = as_complex(x, positions, plain_frequencies(8, 10000));
  // Products of two rounded factors, twice rounded, of size up to 4: 2^-8 for bf16, 2^-24 for fp32.
  EXPECT_LE(largest_difference(
                apply_rotary(x.to(at::kFloat), rotary.angles(positions, x.to(at::kFloat))), want),
            6 * 4 * 0x1p-24);
  const Tensor half =
      apply_rotary(x.to(at::kBFloat16), rotary.angles(positions, x.to(at::kBFloat16)));
  EXPECT_EQ(half.scalar_type(), at::kBFloat16);
  EXPECT_LE(largest_difference(half, want), 6 * 4 * 0x1p-8);
  EXPECT_LE(largest_difference(apply_rotary(x, rotary.angles(positions, x)), want), 1e-14);
}

TEST(Rotary, LinearScaling_DividesEveryFrequency) {
  const Rotary rotary(
      {.head_dim = 8, .theta = 10000, .scaling = RotaryOptions::Scaling::kLinear, .factor = 4});
  EXPECT_LE(largest_difference(rotary.frequencies(), plain_frequencies(8, 10000) / 4), 1e-15);
}

// Llama 3.1's numbers. Frequencies with a wavelength below 8192/4 = 2048 positions are kept, those
// above 8192 are divided by 8. In between, the factor goes from 1 to 1/8, linearly in the number of
// rotations per 8192 positions (4 down to 1).
TEST(Rotary, Llama3Scaling_KeepsShortWavesAndStretchesLongOnes) {
  const Rotary rotary({.head_dim = 128,
                       .theta = 500000,
                       .scaling = RotaryOptions::Scaling::kLlama3,
                       .factor = 8,
                       .low_freq_factor = 1,
                       .high_freq_factor = 4,
                       .original_positions = 8192});
  const Tensor plain = plain_frequencies(128, 500000);
  int kept = 0, stretched = 0, between = 0;
  for (int64_t i = 0; i < 64; ++i) {
    const double f = plain[i].item<double>();
    const double ratio = rotary.frequencies()[i].item<double>() / f;
    const double turns = 8192 * f / (2 * std::numbers::pi);
    if (turns > 4) {
      EXPECT_NEAR(ratio, 1, 1e-15);
      ++kept;
    } else if (turns < 1) {
      EXPECT_NEAR(ratio, 0.125, 1e-15);
      ++stretched;
    } else {
      EXPECT_NEAR(ratio, 0.125 + (turns - 1) / 3 * 0.875, 1e-12);
      ++between;
    }
  }
  EXPECT_GT(kept, 20);
  EXPECT_GT(stretched, 20);
  EXPECT_GT(between, 3);
}

// Oracle: transformers 5.23.0's _compute_yarn_parameters and _compute_longrope_parameters.
TEST(Rotary, YarnScaling_GivesTheFrequenciesOfTransformers) {
  const Rotary rotary({.head_dim = 16,
                       .theta = 10000,
                       .scaling = RotaryOptions::Scaling::kYarn,
                       .factor = 4,
                       .original_positions = 64});
  const Tensor want =
      at::tensor(std::vector<double>{1, 0.237170815, 0.049999997, 0.00790569466, 0.00249999994,
                                     0.000790569466, 0.000250000012, 7.90569466e-05},
                 at::kDouble);
  EXPECT_LE(largest_difference(rotary.frequencies() / want, at::ones_like(want)), 1e-6);
}

TEST(Rotary, LongRope_HasFactorsForShortAndForLongSequences) {
  Rotary rotary({.head_dim = 4,
                 .theta = 100,
                 .scaling = RotaryOptions::Scaling::kLongRope,
                 .original_positions = 6,
                 .magnitude = 1.25,
                 .short_factors = {1, 2},
                 .long_factors = {3, 8}});
  const Tensor plain = plain_frequencies(4, 100);
  EXPECT_LE(largest_difference(rotary.frequencies(6), plain / at::tensor({1.0, 2.0})), 1e-15);
  EXPECT_LE(largest_difference(rotary.frequencies(7), plain / at::tensor({3.0, 8.0})), 1e-15);
  const Tensor x = numbers({1, 1, 1, 4}, 1);
  for (const int64_t at_position : {5, 6, 2}) {  // the tables of both exist afterwards
    const Tensor positions = at::tensor({at_position}, at::kLong);
    const Tensor want = as_complex(x, positions, rotary.frequencies(at_position + 1)) * 1.25;
    const Range range{at_position, at_position + 1};
    EXPECT_LE(largest_difference(apply_rotary(x, rotary.angles(range, x)), want), 1e-14);
    EXPECT_LE(largest_difference(apply_rotary(x, rotary.angles(positions, x)), want), 1e-14);
  }
}

TEST(Rotary, OddHeadDim_IsRefused) {
  for (const int64_t dim : {0, 7}) {
    EXPECT_EQ(test::thrown_by([&] { Rotary rotary({.head_dim = dim}); }).code(), Code::kShape);
  }
}

}  // namespace
}  // namespace cleave::rotary_test
