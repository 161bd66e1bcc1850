// The fused functions of kernels/cpu/fused.h with the CUDA kernels. Oracle: their definitions in
// double precision.
#include <cmath>
#include <functional>
#include <limits>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "cleave/kernels/cpu/fused.h"
#include "tests/support/fiber_kernels.h"
#include "tests/support/ranks.h"

namespace cleave::cuda_layers_test {
namespace {

using test::FiberKernels;
using test::numbers;
using Function = std::function<Tensor(const std::vector<Tensor>&)>;

constexpr at::ScalarType kTypes[] = {at::kFloat, at::kBFloat16};

/// Bound of the error of fp32 sums of `terms` numbers of size about one, rounded to the type.
double bound_of(at::ScalarType type, double terms) {
  return type == at::kBFloat16 ? std::ldexp(1, -7) : std::ldexp(1, -23) * (8 + std::sqrt(terms));
}

/// Value and gradients for inputs of their own type.
std::vector<Tensor> value_and_gradients(const Function& f, const std::vector<Tensor>& inputs) {
  std::vector<Tensor> leaves;
  leaves.reserve(inputs.size());
  for (const Tensor& t : inputs) leaves.push_back(t.detach().clone().requires_grad_());
  const Tensor value = f(leaves);
  const Tensor d = numbers(value.sizes(), 99).to(at::kBFloat16).to(value.scalar_type());
  auto out = torch::autograd::grad({value}, leaves, {d});
  out.insert(out.begin(), value.detach());
  return out;
}

/// Compares `fused` for inputs of `type` with `defined` in double precision, and both orders of the
/// threads bit for bit.
void expect_equal(const Function& fused, const Function& defined, const std::vector<Tensor>& inputs,
                  at::ScalarType type, double terms) {
  std::vector<Tensor> narrow, wide;
  for (const Tensor& t : inputs) {
    narrow.push_back(t.to(type));
    wide.push_back(narrow.back().to(at::kDouble));
  }
  std::vector<Tensor> got, reversed;
  {
    const FiberKernels kernels;
    got = value_and_gradients(fused, narrow);
    EXPECT_GE(kernels.launches(), 2);
  }
  {
    const FiberKernels kernels(/*is_reversed=*/true);
    reversed = value_and_gradients(fused, narrow);
  }
  const std::vector<Tensor> want = value_and_gradients(defined, wide);
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(got[i].scalar_type(), type);
    EXPECT_TRUE(at::equal(got[i], reversed[i]));
    const double size = 1 + want[i].abs().max().item<double>();
    EXPECT_LE((got[i].to(at::kDouble) - want[i]).abs().max().item<double>(),
              bound_of(type, terms) * size)
        << (i == 0 ? "value" : "gradient") << ' ' << i << ' ' << want[i].sizes() << ' ' << type;
  }
}

/// Rows and widths around quads, warps, blocks and the rows of a part; the last is too wide for
/// the memory that a block shares.
const std::vector<std::pair<int64_t, int64_t>> kShapes{{1, 1},    {3, 5},    {70, 16},
                                                       {33, 100}, {2, 1027}, {2, 12500}};

Tensor normalized(const Tensor& x, double eps) {
  return x * (x.square().mean(-1, true) + eps).rsqrt();
}

TEST(CudaRmsNorm, AnyShapeAndOffset_EqualsTheDefinition) {
  for (const at::ScalarType type : kTypes) {
    for (const auto& [rows, width] : kShapes) {
      for (const double offset : {0.0, 1.0}) {
        expect_equal([&](const auto& t) { return fused_rms_norm(t[0], t[1], 1e-5, offset); },
                     [&](const auto& t) { return normalized(t[0], 1e-5) * (t[1] + offset); },
                     {numbers({rows, width}, 1), numbers({width}, 2) / (1 + 99 * offset)}, type,
                     static_cast<double>(width + rows));
      }
    }
  }
}

TEST(CudaLayerNorm, AnyShape_EqualsTheDefinition) {
  for (const at::ScalarType type : kTypes) {
    for (const auto& [rows, width] : kShapes) {
      if (width == 1) continue;  // the result is the bias
      expect_equal([](const auto& t) { return fused_layer_norm(t[0], t[1], t[2], 1e-2); },
                   [](const auto& t) {
                     const Tensor center = t[0] - t[0].mean(-1, true);
                     return center * (center.square().mean(-1, true) + 1e-2).rsqrt() * t[1] + t[2];
                   },
                   {numbers({rows, width}, 1), numbers({width}, 2), numbers({width}, 3)}, type,
                   static_cast<double>(width + rows));
    }
  }
}

/// Both results side by side, so that each gets a gradient.
Tensor both(const NormedSum& y) {
  return at::cat({y.sum, y.normed}, -1);
}

TEST(CudaNorms, OfASum_EqualTheDefinitions) {
  for (const at::ScalarType type : kTypes) {
    for (const auto& [rows, width] : kShapes) {
      // In bf16 the normed sum is rounded. Eighths of small numbers have exact sums.
      const Tensor a = numbers({rows, width}, 1).mul(8).round().div(8);
      const Tensor b = numbers({rows, width}, 4).mul(8).round().div(8);
      const Tensor weight = numbers({width}, 2), bias = numbers({width}, 3);
      expect_equal(
          [](const auto& t) {
            return both(fused_rms_norm({t[0], t[1]}, t[2], 1e-2, 1));
          },
          [](const auto& t) {
            const Tensor sum = t[0] + t[1];
            return both({.sum = sum, .normed = normalized(sum, 1e-2) * (t[2] + 1)});
          },
          {a, b, weight}, type, static_cast<double>(width + rows));
      if (width == 1) continue;
      expect_equal(
          [](const auto& t) {
            return both(fused_layer_norm({t[0], t[1]}, t[2], t[3], 1e-2));
          },
          [](const auto& t) {
            const Tensor sum = t[0] + t[1];
            const Tensor center = sum - sum.mean(-1, true);
            const Tensor normed = center * (center.square().mean(-1, true) + 1e-2).rsqrt();
            return both({.sum = sum, .normed = normed * t[2] + t[3]});
          },
          {a, b, weight, bias}, type, static_cast<double>(width + rows));
    }
  }
}

// The variance must be computed from differences.
TEST(CudaLayerNorm, MeanFarFromZero_LosesNoMoreThanTheInput) {
  const Tensor x = (numbers({5, 300}, 1) + 1000).to(at::kFloat);
  const Tensor center = x.to(at::kDouble) - x.to(at::kDouble).mean(-1, true);
  const Tensor want = center * (center.square().mean(-1, true) + 1e-5).rsqrt();
  const FiberKernels kernels;
  const Tensor got = fused_layer_norm(x, at::ones({300}), at::zeros({300}), 1e-5);
  // The mean of 300 numbers of 1000 is off by at most 300 / 2 roundings in each of 75 threads'
  // sums.
  EXPECT_LE((got.to(at::kDouble) - want).abs().max().item<double>(), 1000 * 16 * 0x1p-24 * 4);
}

TEST(CudaGelu, AnySize_EqualsTheDefinition) {
  for (const at::ScalarType type : kTypes) {
    for (const int64_t size : {1, 6, 1024, 2051}) {
      for (const double scale : {1.0, 30.0}) {
        expect_equal([](const auto& t) { return fused_gelu(t[0]); },
                     [](const auto& t) {
                       const double root = std::sqrt(2 / 3.14159265358979323846);
                       return t[0] * 0.5 * (1 + (root * (t[0] + 0.044715 * t[0].pow(3))).tanh());
                     },
                     {numbers({size}, 1) * scale}, type, 1);
      }
    }
  }
}

TEST(CudaGate, AnySize_EqualsTheDefinition) {
  for (const at::ScalarType type : kTypes) {
    for (const int64_t size : {1, 6, 1024, 2051}) {
      for (const double scale : {10.0, 1000.0}) {
        expect_equal([](const auto& t) { return fused_gate(t[0], t[1]); },
                     [](const auto& t) { return t[0] * t[0].sigmoid() * t[1]; },
                     {numbers({size}, 1) * scale, numbers({size}, 2)}, type, 1);
      }
    }
  }
}

TEST(CudaRotary, StridedHeads_EqualTheDefinition) {
  for (const at::ScalarType type : kTypes) {
    for (const int64_t width : {2, 10, 64}) {
      const Tensor angles = numbers({3, 7, width / 2}, 5);
      // Angles for each sequence; for all sequences as [1, T, K/2]; and as [T, K/2].
      for (const Tensor& own : {angles, angles.narrow(0, 0, 1), angles[0]}) {
        const Tensor cos = own.cos().to(type), sin = own.sin().to(type);
        expect_equal(
            [&](const auto& t) { return fused_rotary(t[0].transpose(1, 2), cos, sin); },
            [&](const auto& t) {
              const auto of_heads = [&](const Tensor& table) {
                const Tensor wide = table.to(at::kDouble);
                return own.dim() == 3 ? wide.unsqueeze(1) : wide;
              };
              const auto halves = t[0].transpose(1, 2).chunk(2, -1);
              const Tensor c = of_heads(cos), s = of_heads(sin);
              return at::cat({halves[0] * c - halves[1] * s, halves[1] * c + halves[0] * s}, -1);
            },
            {numbers({3, 7, 2, width}, 1)}, type, 2);
      }
    }
  }
}

TEST(CudaSoftmax, RowsOfAnyWidth_GiveTheGradientOfTheLoss) {
  const FiberKernels kernels;
  for (const at::ScalarType type : kTypes) {
    for (const int64_t width : {1, 17, 128, 3001}) {
      const Tensor z = (numbers({9, width}, 3) * 5).to(type);
      const Tensor wide = z.to(at::kDouble);
      const SoftmaxSums sums = softmax_sums(z);
      EXPECT_TRUE(at::equal(sums.largest, z.to(at::kFloat).amax(-1)));
      const Tensor log_sum = sums.largest.to(at::kDouble) + sums.sums.to(at::kDouble).log();
      // Each term and each addition rounds, relative to the sum.
      EXPECT_LE((log_sum - wide.logsumexp(-1)).abs().max().item<double>(), 32 * 0x1p-24);
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
      EXPECT_EQ(got[4].count_nonzero().item<int64_t>(), 0);  // its factor is 0
    }
  }
}

TEST(CudaSoftmax, InfinityAndNaN_AreKept) {
  const FiberKernels kernels;
  const float infinity = std::numeric_limits<float>::infinity();
  Tensor z = at::zeros({3, 140});
  z[0].slice(0, 1).fill_(-infinity);  // one class is left
  z[1][139] = std::numeric_limits<float>::quiet_NaN();
  z[2].fill_(-infinity);
  const SoftmaxSums sums = softmax_sums(z);
  EXPECT_EQ(sums.sums[0].item<float>(), 1);
  EXPECT_TRUE(std::isnan(sums.sums[1].item<float>()));
  EXPECT_EQ(sums.largest[2].item<float>(), -infinity);
  EXPECT_EQ(sums.sums[2].item<float>(), 0);
}

}  // namespace
}  // namespace cleave::cuda_layers_test
