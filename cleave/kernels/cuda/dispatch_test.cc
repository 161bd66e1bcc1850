// Layers, initial values, norms and optimizers on a device with kernels, for which the tests take
// the CPU with fibers. Oracle: the same on the CPU without them.
#include <array>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/nn/cross_entropy.h"
#include "cleave/nn/dropout.h"
#include "cleave/nn/initial_value.h"
#include "cleave/nn/mlp.h"
#include "cleave/nn/norm.h"
#include "cleave/nn/rotary.h"
#include "cleave/optim/optimizer.h"
#include "cleave/parallel/gradients.h"
#include "cleave/runtime/kernel_switches.h"
#include "tests/support/fiber_kernels.h"
#include "tests/support/ranks.h"

namespace cleave::cuda_dispatch_test {
namespace {

using test::FiberKernels;
using test::leaf_of;
using test::numbers;
using test::on_ranks;

Context training() {
  Context c;
  c.training = true;
  c.seed = 5;
  c.step = 9;
  c.first_sample = 3;
  return c;
}

/// The value of Dropout for a tensor, and its gradient for a gradient of ones.
std::pair<Tensor, Tensor> dropped(const Tensor& whole, const Axis& axis, const Placement& p) {
  Dropout layer(0.3);
  const DTensor placed = DTensor::distribute(whole, axis, p);
  const Tensor x = leaf_of(placed.local());
  const DTensor y = layer(placed.with(x), training());
  y.local().sum().backward();
  return {y.local().detach(), x.grad()};
}

TEST(DeviceDropout, ValueAndGradientOnEveryLayout_HaveTheCpusBits) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const Placement& p :
         {Placement(Replicate{}), Placement(Shard{0}), Placement(Shard{1}), Placement(Shard{2})}) {
      std::array<std::vector<std::pair<Tensor, Tensor>>, 2> seen;
      const auto run = [&](std::vector<std::pair<Tensor, Tensor>>& out) {
        out.resize(3);
        on_ranks(3, [&](const Axis& axis) {
          out[static_cast<size_t>(axis.rank())] = dropped(numbers({4, 5, 7}, 1).to(type), axis, p);
        });
      };
      run(seen[0]);
      const FiberKernels kernels;
      run(seen[1]);
      EXPECT_EQ(kernels.launches(), 6) << p.describe();  // forward and backward of three ranks
      for (size_t r = 0; r < 3; ++r) {
        EXPECT_TRUE(at::equal(seen[0][r].first, seen[1][r].first)) << p.describe();
        EXPECT_TRUE(at::equal(seen[0][r].second, seen[1][r].second)) << p.describe();
      }
    }
  }
}

TEST(DeviceDropout, Mask_HasTheCpusBits) {
  const DTensor x(at::empty({1}).expand({2, 3, 4, 4}), Axis(), Replicate{});
  const Tensor want = dropout_mask(x, 0.1, "attention", training());
  const FiberKernels kernels;
  EXPECT_TRUE(at::equal(dropout_mask(x, 0.1, "attention", training()), want));
  EXPECT_EQ(kernels.launches(), 1);
}

TEST(DeviceInitialValue, OnEveryShard_HasTheCpusBits) {
  const SplitPtr pieces = Split::intern(6, {{{0, 1}, {4, 6}}, {{1, 4}}});
  const FiberKernels kernels;
  on_ranks(2, [&](const Axis& axis) {
    for (const Init& init : {Init::normal(0.05), Init::uniform(0.5), Init::constant(2)}) {
      for (const auto& [dim, split] : std::vector<std::pair<int, SplitPtr>>{
               {0, Split::balanced(7, 2)}, {1, Split::balanced(6, 2)}, {1, pieces}}) {
        Parameter p({7, 6}, init);
        p.set_name("block.weight");
        p.shard(axis, dim, split);
        for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kDouble}) {
          const Tensor want = p.initial_value(3, type);
          EXPECT_TRUE(at::equal(initial_value_on(at::kCPU, p, 3, type), want));
        }
        p.shard_flat(axis, {2, 9});
        EXPECT_TRUE(at::equal(initial_value_on(at::kCPU, p, 3, at::kFloat),
                              p.initial_value(3, at::kFloat)));
      }
    }
  });
  EXPECT_EQ(kernels.launches(), 2 * 2 * 3 * 3);  // ranks, kinds, splits, types and a flat leaf
}

/// A matrix of which forward reads a bf16 copy, and two vectors, with gradients.
Parameters parameters_of() {
  Parameters out;
  for (const auto& [shape, seed] :
       std::vector<std::pair<std::vector<int64_t>, uint64_t>>{{{37, 5}, 1}, {{11}, 2}, {{64}, 3}}) {
    const auto p = std::make_shared<Parameter>(shape, Init::constant(0));
    p->set_leaf(numbers(shape, seed).to(at::kFloat));
    if (shape.size() == 2) p->set_use(p->leaf().detach().to(at::kBFloat16));
    p->leaf().mutable_grad() = numbers(shape, 10 + seed).to(at::kFloat);
    out.push_back(p);
  }
  return out;
}

TEST(DeviceOptimizer, Steps_FollowTheCpusKernelInTwoLaunches) {
  for (const auto kind : {OptimizerOptions::Kind::kAdamW, OptimizerOptions::Kind::kAdam}) {
    const OptimizerOptions options{.kind = kind, .weight_decay = 0.1};
    const Parameters on_cpu = parameters_of(), on_device = parameters_of();
    Optimizer a(on_cpu, options), b(on_device, options);
    a.step(0.01, 0.5);
    a.step(0.02, 0.25);
    {
      const FiberKernels kernels;
      b.step(0.01, 0.5);
      EXPECT_EQ(kernels.launches(), 2);  // with and without weight decay
      b.step(0.02, 0.25);
    }
    for (size_t i = 0; i < on_cpu.size(); ++i) {
      // Both round a dozen times in a step, of numbers below four.
      const double most = (on_cpu[i]->leaf() - on_device[i]->leaf()).abs().max().item<double>();
      EXPECT_LE(most, 2 * 12 * 4 * 0x1p-24);
    }
    EXPECT_TRUE(at::equal(on_device[0]->use(), on_device[0]->leaf().to(at::kBFloat16)));
  }
}

TEST(DeviceGradientNorm, OfAllParameters_IsTheCpusInOneRead) {
  const Parameters parameters = parameters_of();
  const double want = gradient_norm(parameters, Axis()).value;
  const FiberKernels kernels;
  // Sums of 260 numbers in another order.
  EXPECT_NEAR(gradient_norm(parameters, Axis()).value, want, want * 260 * 0x1p-53);
  EXPECT_EQ(kernels.launches(), 2);  // sums of parts, sums of those
  parameters[1]->set_name("second");
  parameters[1]->leaf().mutable_grad()[3] = NAN;
  EXPECT_EQ(gradient_norm(parameters, Axis()).not_finite, "second");
}

TEST(DeviceCrossEntropy, ShardedClasses_HaveTheLossAndGradientInDoublePrecision) {
  const Tensor whole = numbers({6, 13}, 1) * 4;
  const Tensor labels = at::tensor({3, 0, -100, 12, 7, 3}, at::kLong);
  for (const double smoothing : {0.0, 0.1}) {
    const Tensor wide = leaf_of(whole.to(at::kFloat).to(at::kDouble));
    const Tensor want =
        at::cross_entropy_loss(wide, labels, {}, at::Reduction::Mean, -100, smoothing);
    want.backward();
    for (const int tp : {1, 3}) {
      const FiberKernels kernels;
      on_ranks(tp, [&](const Axis& axis) {
        const DTensor placed = DTensor::distribute(whole.to(at::kFloat), axis, Shard{1});
        const Tensor z = leaf_of(placed.local());
        const DTensor loss = cross_entropy(placed.with(z), labels, {.label_smoothing = smoothing});
        loss.local().backward();
        // A loss below 32 from two roundings of 2^-24 and a logarithm; gradients below 1 / 5.
        EXPECT_NEAR(loss.local().item<double>(), want.item<double>(), 32 * 4 * 0x1p-24);
        const Tensor gradient = DTensor::distribute(wide.grad(), axis, Shard{1}).local();
        EXPECT_LE((z.grad() - gradient).abs().max().item<double>(), 16 * 0x1p-24);
      });
      EXPECT_EQ(kernels.launches(), 2 * tp);
    }
  }
}

/// Launches of each kernel that a switch turns off.
int launches_of_all() {
  const FiberKernels kernels;
  const DTensor x(numbers({2, 8}, 1).to(at::kFloat), Axis(), Replicate{});
  (void)dropout_mask(x, 0.1, "here", training());
  Parameter weight({4}, Init::normal(1));
  (void)initial_value_on(at::kCPU, weight, 3, at::kFloat);
  (void)rms_norm(x.local(), at::ones({8}), 1e-5);
  (void)gated(Activation::kSilu, x.local(), x.local());
  (void)activate(Activation::kGeluTanh, x.local());
  (void)cross_entropy(x, at::zeros({2}, at::kLong));
  const Tensor heads = x.local().view({1, 1, 2, 8});
  (void)apply_rotary(heads, {.cos = at::ones({2, 4}), .sin = at::zeros({2, 4})});
  const Parameters parameters = parameters_of();
  (void)gradient_norm(parameters, Axis());
  Optimizer(parameters, {}).step(0.1);
  return kernels.launches();
}

TEST(PlainKernels, All_LaunchesNothingOnADeviceWithKernels) {
  EXPECT_EQ(launches_of_all(), 10);  // the norm of gradients takes two
  set_plain_kernels("all");
  EXPECT_EQ(launches_of_all(), 0);
  set_plain_kernels("random");
  EXPECT_EQ(launches_of_all(), 8);
  set_plain_kernels("");
}

}  // namespace
}  // namespace cleave::cuda_dispatch_test
