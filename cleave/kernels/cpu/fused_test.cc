#include "cleave/kernels/cpu/fused.h"

#include <cmath>
#include <limits>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "cleave/base/error.h"
#include "cleave/runtime/kernel_switches.h"

namespace cleave::fused_test {
namespace {

using Function = std::function<Tensor(const std::vector<Tensor>&)>;

Tensor random(at::IntArrayRef shape, uint64_t seed) {
  const auto generator = at::detail::createCPUGenerator(seed);
  return at::randn(shape, generator, at::kDouble);
}

/// Bound of the error of fp32 sums of `terms` numbers of size about one, rounded to the type.
double bound_of(at::ScalarType type, double terms) {
  return type == at::kBFloat16 ? std::ldexp(1, -7) : std::ldexp(1, -23) * (8 + std::sqrt(terms));
}

/// Compares value and gradients of `fused` for inputs of `type` with `defined` in double precision.
void expect_equal(const Function& fused, const Function& defined, const std::vector<Tensor>& inputs,
                  at::ScalarType type, double terms) {
  std::vector<Tensor> narrow, wide;
  for (const Tensor& t : inputs) {
    narrow.push_back(t.to(type).requires_grad_());
    wide.push_back(narrow.back().detach().to(at::kDouble).requires_grad_());
  }
  const Tensor got = fused(narrow);
  const Tensor want = defined(wide);
  ASSERT_EQ(got.sizes(), want.sizes());
  EXPECT_EQ(got.scalar_type(), type);
  const Tensor d = random(got.sizes(), 99).to(type);
  auto a = torch::autograd::grad({got}, narrow, {d});
  auto b = torch::autograd::grad({want}, wide, {d.to(at::kDouble)});
  a.insert(a.begin(), got);
  b.insert(b.begin(), want);
  for (size_t i = 0; i < a.size(); ++i) {
    const double size = 1 + b[i].abs().max().item<double>();
    EXPECT_LE((a[i].to(at::kDouble) - b[i]).abs().max().item<double>(),
              bound_of(type, terms) * size)
        << (i == 0 ? "value" : "gradient") << ' ' << i << ' ' << want.sizes();
  }
}

constexpr at::ScalarType kTypes[] = {at::kFloat, at::kBFloat16};

TEST(FusedRmsNorm, AnyWidth_EqualsTheDefinition) {
  for (const at::ScalarType type : kTypes) {
    for (const int64_t width : {1, 5, 16, 100, 768}) {
      for (const int64_t rows : {1, 63, 130}) {
        expect_equal([](const auto& t) { return fused_rms_norm(t[0], t[1], 1e-5); },
                     [](const auto& t) {
                       return t[0] * (t[0].square().mean(-1, true) + 1e-5).rsqrt() * t[1];
                     },
                     {random({rows, width}, 1), random({width}, 2)}, type,
                     static_cast<double>(width + rows));
      }
    }
  }
}

// Weights of about 0.01: 1 + weight in bf16 would lose most of them.
TEST(FusedRmsNorm, Offset_IsAddedToTheWeight) {
  for (const at::ScalarType type : kTypes) {
    for (const int64_t width : {1, 5, 16, 100}) {
      expect_equal([](const auto& t) { return fused_rms_norm(t[0], t[1], 1e-5, 1); },
                   [](const auto& t) {
                     return t[0] * (t[0].square().mean(-1, true) + 1e-5).rsqrt() * (1 + t[1]);
                   },
                   {random({63, width}, 1), random({width}, 2) / 100}, type,
                   static_cast<double>(width + 63));
    }
  }
}

TEST(FusedLayerNorm, AnyWidth_EqualsTheDefinition) {
  for (const at::ScalarType type : kTypes) {
    for (const int64_t width : {1, 5, 16, 100, 768}) {
      for (const int64_t rows : {1, 63, 130}) {
        // A mean far from zero: the variance must be computed from differences.
        const Tensor x = (random({rows, width}, 1) + 30).to(type);
        const Tensor weight = random({width}, 2).to(type), bias = random({width}, 3).to(type);
        const Tensor wide = x.to(at::kDouble);
        const Tensor center = wide - wide.mean(-1, true);
        const Tensor want =
            center * (center.square().mean(-1, true) + 1e-5).rsqrt() * weight + bias;
        const Tensor got = fused_layer_norm(x, weight, bias, 1e-5);
        EXPECT_EQ(got.scalar_type(), type);
        // With numbers around 30, each difference from the mean is off by 30 ulps, magnified in
        // rows with small differences.
        const double spread = center.square().mean(-1).add(1e-5).rsqrt().max().item<double>();
        const double off = 64 * std::ldexp(1, -23) * spread * weight.abs().max().item<double>();
        EXPECT_LE((got.to(at::kDouble) - want).abs().max().item<double>(),
                  off + bound_of(type, static_cast<double>(width)) *
                            (1 + want.abs().max().item<double>()))
            << width << ' ' << rows;
      }
    }
  }
}

TEST(FusedLayerNorm, Gradients_EqualThoseOfTheDefinition) {
  for (const at::ScalarType type : kTypes) {
    for (const int64_t width : {5, 16, 100, 768}) {
      for (const int64_t rows : {1, 63, 130}) {
        expect_equal([](const auto& t) { return fused_layer_norm(t[0], t[1], t[2], 1e-2); },
                     [](const auto& t) {
                       const Tensor center = t[0] - t[0].mean(-1, true);
                       return center * (center.square().mean(-1, true) + 1e-2).rsqrt() * t[1] +
                              t[2];
                     },
                     {random({rows, width}, 1), random({width}, 2), random({width}, 3)}, type,
                     static_cast<double>(width + rows));
      }
    }
  }
}

/// What of a NormedSum a loss uses.
enum class Used : uint8_t { kSum, kNormed, kBoth };

/// The used values, and the gradients of the inputs. Inputs that get none have zeros.
std::vector<Tensor> values_and_gradients(const NormedSum& result, std::vector<Tensor> inputs,
                                         Used used) {
  std::vector<Tensor> out, d;
  if (used != Used::kNormed) out.push_back(result.sum);
  if (used != Used::kSum) out.push_back(result.normed);
  d.reserve(out.size());
  for (const Tensor& y : out) d.push_back(random(y.sizes(), 90 + d.size()).to(y.scalar_type()));
  auto gradients = torch::autograd::grad(out, inputs, d, false, false, /*allow_unused=*/true);
  for (size_t i = 0; i < inputs.size(); ++i) {
    out.push_back(gradients[i].defined() ? gradients[i] : at::zeros_like(inputs[i]));
  }
  return out;
}

using SumNorm = std::function<NormedSum(const std::vector<Tensor>&)>;

void expect_same_bits(const SumNorm& fused, const SumNorm& separate,
                      const std::vector<Tensor>& inputs) {
  for (const Used used : {Used::kSum, Used::kNormed, Used::kBoth}) {
    std::vector<Tensor> leaves;
    leaves.reserve(inputs.size());
    for (const Tensor& t : inputs) leaves.push_back(t.detach().requires_grad_());
    const auto got = values_and_gradients(fused(leaves), leaves, used);
    const auto want = values_and_gradients(separate(leaves), leaves, used);
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_TRUE(at::equal(got[i], want[i])) << i << " of use " << static_cast<int>(used) << ' '
                                              << want[i].sizes() << ' ' << want[i].scalar_type();
    }
  }
}

// Oracle: libtorch's sum, and the norm of it, which the tests above compare with its definition.
TEST(FusedNorms, OfASum_HaveTheBitsOfSumAndNorm) {
  for (const at::ScalarType type : kTypes) {
    for (const int64_t width : {1, 5, 16, 100, 768}) {
      for (const int64_t rows : {1, 63, 130}) {
        const Tensor a = random({rows, width}, 1).to(type), b = random({rows, width}, 4).to(type);
        const Tensor weight = random({width}, 2).to(type), bias = random({width}, 3).to(type);
        expect_same_bits(
            [](const auto& t) {
              return fused_rms_norm(Terms{.a = t[0], .b = t[1]}, t[2], 1e-5, 1);
            },
            [](const auto& t) {
              const Tensor sum = t[0] + t[1];
              return NormedSum{.sum = sum, .normed = fused_rms_norm(sum, t[2], 1e-5, 1)};
            },
            {a, b, weight});
        expect_same_bits(
            [](const auto& t) {
              return fused_layer_norm(Terms{.a = t[0], .b = t[1]}, t[2], t[3], 1e-2);
            },
            [](const auto& t) {
              const Tensor sum = t[0] + t[1];
              return NormedSum{.sum = sum, .normed = fused_layer_norm(sum, t[2], t[3], 1e-2)};
            },
            {a, b, weight, bias});
      }
    }
  }
}

// Also where exp overflows, and for large negative inputs, where the result vanishes.
TEST(FusedGelu, AnySize_EqualsTheDefinition) {
  for (const at::ScalarType type : kTypes) {
    for (const int64_t size : {1, 15, 16, 33, 40000}) {
      for (const double scale : {1.0, 30.0}) {
        expect_equal([](const auto& t) { return fused_gelu(t[0]); },
                     [](const auto& t) {
                       const double root = std::sqrt(2 / 3.14159265358979323846);
                       return t[0] * 0.5 * (1 + (root * (t[0] + 0.044715 * t[0].pow(3))).tanh());
                     },
                     {random({size}, 1) * scale}, type, 1);
      }
    }
  }
}

TEST(FusedGate, AnySize_EqualsTheDefinition) {
  for (const at::ScalarType type : kTypes) {
    for (const int64_t size : {1, 15, 16, 33, 40000}) {
      for (const double scale : {10.0, 1000.0}) {
        expect_equal([](const auto& t) { return fused_gate(t[0], t[1]); },
                     [](const auto& t) { return t[0] * t[0].sigmoid() * t[1]; },
                     {random({size}, 1) * scale, random({size}, 2)}, type, 1);
      }
    }
  }
}

TEST(FusedGate, LargeInputs_GiveNoInfinity) {
  const Tensor gate = at::tensor({-200.0F, 200.0F, -90.0F, 90.0F});
  const Tensor got = fused_gate(gate, at::ones({4}));
  EXPECT_TRUE(at::allclose(got, at::tensor({0.0F, 200.0F, 0.0F, 90.0F})));
}

TEST(FusedRotary, StridedHeads_EqualTheDefinition) {
  for (const at::ScalarType type : kTypes) {
    for (const int64_t width : {2, 10, 48, 64}) {
      const Tensor angles = random({3, 7, width / 2}, 5).to(type);
      // Angles for each sequence; for all sequences as [1, T, K/2]; and as [T, K/2].
      for (const Tensor& own : {angles, angles.narrow(0, 0, 1), angles[0]}) {
        const bool has_rows = own.dim() == 3;
        const Tensor cos =
            angles.to(at::kDouble).cos().to(type).as_strided(own.sizes(), own.strides());
        const Tensor sin =
            angles.to(at::kDouble).sin().to(type).as_strided(own.sizes(), own.strides());
        expect_equal(
            [&](const auto& t) { return fused_rotary(t[0].transpose(1, 2), cos, sin); },
            [&](const auto& t) {
              const auto of_heads = [&](const Tensor& table) {
                const Tensor wide = table.to(at::kDouble);
                return has_rows ? wide.unsqueeze(1) : wide;
              };
              const auto halves = t[0].transpose(1, 2).chunk(2, -1);
              const Tensor c = of_heads(cos), s = of_heads(sin);
              return at::cat({halves[0] * c - halves[1] * s, halves[1] * c + halves[0] * s}, -1);
            },
            {random({3, 7, 2, width}, 1)}, type, 2);
      }
    }
  }
}

TEST(SoftmaxKernels, RowsOfAnyWidth_GiveTheGradientOfTheLoss) {
  for (const at::ScalarType type : kTypes) {
    for (const int64_t width : {1, 17, 1000}) {
      const Tensor z = (random({9, width}, 3) * 5).to(type);
      const Tensor wide = z.to(at::kDouble);
      const SoftmaxSums sums = softmax_sums(z);
      EXPECT_TRUE(at::equal(sums.largest, z.to(at::kFloat).amax(-1)));
      const Tensor log_sum = sums.largest + sums.sums.log();
      EXPECT_LE((log_sum - wide.logsumexp(-1)).abs().max().item<double>(), 1e-5);
      const Tensor target = at::arange(9).remainder(width);
      const Tensor factor = at::linspace(-1, 1, 9);
      const Tensor got = softmax_gradient(z, {.rows = sums,
                                              .factor = factor,
                                              .target = target.masked_fill(factor.gt(0.9), -1),
                                              .spread = 0.25,
                                              .weight = 0.5});
      Tensor want = wide.softmax(-1) - 0.25;
      const Tensor taken = at::one_hot(target, width) * factor.le(0.9).unsqueeze(-1) * 0.5;
      want = (want - taken) * factor.unsqueeze(-1);
      EXPECT_LE((got.to(at::kDouble) - want).abs().max().item<double>(), bound_of(type, 4));
    }
  }
}

TEST(SoftmaxKernels, NaN_StaysNaN) {
  Tensor z = at::zeros({2, 40});
  z[1][33] = std::numeric_limits<float>::quiet_NaN();
  const SoftmaxSums sums = softmax_sums(z);
  EXPECT_EQ(sums.sums[0].item<float>(), 40);
  EXPECT_TRUE(std::isnan(sums.sums[1].item<float>()));
}

// As libtorch's own norms and activations do.
TEST(FusedKernels, InputChangedInPlaceBeforeBackward_IsRefused) {
  const Tensor weight = at::ones({8}), bias = at::zeros({8});
  const std::function<Tensor(const Tensor&)> calls[] = {
      [&](const Tensor& x) { return fused_rms_norm(x, weight, 1e-5); },
      [&](const Tensor& x) { return fused_layer_norm(x, weight, bias, 1e-5); },
      [](const Tensor& x) { return fused_gelu(x); },
      [](const Tensor& x) { return fused_gate(x, x); }};
  for (const auto& call : calls) {
    for (const bool is_changed : {false, true}) {
      const Tensor leaf = at::ones({2, 8}).requires_grad_();
      Tensor x = leaf * 2;
      const Tensor y = call(x);
      if (is_changed) x.add_(1);
      const auto backward = [&] { y.sum().backward(); };
      if (is_changed) {
        EXPECT_THROW(backward(), Error);
      } else {
        EXPECT_NO_THROW(backward());
      }
    }
  }
}

TEST(PlainKernels, Names_TurnOffOnlyThoseKernels) {
  set_plain_kernels("norm,loss");
  EXPECT_FALSE(is_on(Kernel::kNorm));
  EXPECT_FALSE(is_on(Kernel::kLoss));
  EXPECT_TRUE(is_on(Kernel::kGate));
  set_plain_kernels("all");
  EXPECT_FALSE(is_on(Kernel::kGate));
  EXPECT_THROW(set_plain_kernels("norms"), Error);
  set_plain_kernels("");
  EXPECT_TRUE(is_on(Kernel::kNorm));
}

// Oracle: libtorch's sum of copies in fp32.
TEST(AddInFp32, AnySizeAndOrder_HasTheBitsOfASumOfCopies) {
  for (const at::ScalarType type : kTypes) {
    for (const int64_t size : {0, 1, 7, 100, 70'001}) {
      for (const bool is_transposed : {false, true}) {
        const auto shaped = [&](uint64_t seed) {
          const Tensor t = random({3, size}, seed);
          return is_transposed ? t.t() : t;
        };
        const Tensor sum = shaped(1).to(type), x = shaped(2).to(at::kBFloat16);
        const Tensor want = sum.to(at::kFloat) + x.to(at::kFloat);
        const Tensor got = add_in_fp32(sum, x);
        EXPECT_TRUE(at::equal(got, want)) << size;
        EXPECT_EQ(got.strides(), sum.strides());
        EXPECT_EQ(got.is_same(sum), type == at::kFloat) << "the sum stays in its memory";
      }
    }
  }
  const Tensor rows = random({5, 8}, 3).to(at::kFloat),
               columns = random({8, 5}, 4).to(at::kBFloat16).t();
  const Tensor want = rows + columns.to(at::kFloat);
  EXPECT_TRUE(at::equal(add_in_fp32(rows, columns), want)) << "of another order in memory";
}

TEST(FusedNorm, AnySize_EqualsTheNormInDoublePrecision) {
  for (const at::ScalarType type : kTypes) {
    for (const int64_t size : {1, 7, 100, 70000, (1 << 20) + 33}) {
      const Tensor t = random({size}, 5).to(type);
      const double want = t.to(at::kDouble).pow(2).sum().sqrt().item<double>();
      // Sums of `size` numbers in another order; each addition rounds once.
      EXPECT_NEAR(fused_l2_norm(t), want, want * static_cast<double>(size) * 0x1p-53) << size;
    }
  }
  // Squares that overflow fp32.
  EXPECT_NEAR(fused_l2_norm(at::full({64}, 1e30F)), 8e30, 1e24);
  EXPECT_TRUE(std::isnan(fused_l2_norm(at::tensor({1.0F, NAN}))));
}

}  // namespace
}  // namespace cleave::fused_test
