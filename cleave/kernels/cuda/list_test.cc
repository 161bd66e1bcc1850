// Oracles: the sums and the rule in double precision, and the CPU's kernel bit for bit.
#include <cmath>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/kernels/cpu/adam.h"
#include "cleave/kernels/cuda/kernel_set.h"
#include "cleave/kernels/device.h"
#include "tests/support/fiber_block.h"

namespace cleave::cuda_list_test {
namespace {

using test::FiberLaunch;

/// More tensors than a launch takes, of sizes around quads, parts and multiples of them.
std::vector<Tensor> tensors_of(at::ScalarType type) {
  std::vector<Tensor> out;
  for (const int64_t size :
       {int64_t{1}, int64_t{4}, int64_t{1023}, kListPart - 1, kListPart + 1, 3 * kListPart + 5}) {
    out.push_back(at::randn({size}).to(type));
  }
  for (size_t i = 0; i < 2 * TensorList<SquaresOf>::kMost; ++i) {
    out.push_back(at::randn({1 + static_cast<int64_t>(i % 3)}).to(type));
  }
  return out;
}

TEST(CudaNorms, TensorsOfManySizes_HaveTheNormsInDoublePrecision) {
  const KernelSet<FiberLaunch> kernels, reversed(FiberLaunch{.is_reversed = true});
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const std::vector<Tensor> tensors = tensors_of(type);
    const std::vector<double> norms = l2_norms(kernels, tensors);
    ASSERT_EQ(norms.size(), tensors.size());
    for (size_t i = 0; i < tensors.size(); ++i) {
      const double want = tensors[i].to(at::kDouble).square().sum().sqrt().item<double>();
      // Each square is exact, each addition rounds once, in another order.
      EXPECT_NEAR(norms[i], want, want * static_cast<double>(tensors[i].numel()) * 0x1p-53) << i;
    }
    EXPECT_EQ(norms, l2_norms(reversed, tensors));
  }
}

TEST(CudaNorms, LargeNumbersAndNaN_AreKept) {
  const KernelSet<FiberLaunch> kernels;
  const std::vector<double> norms =
      l2_norms(kernels, {at::full({64}, 1e30F), at::tensor({1.0F, NAN}), at::zeros({3})});
  EXPECT_NEAR(norms[0], 8e30, 1e24);
  EXPECT_TRUE(std::isnan(norms[1]));
  EXPECT_EQ(norms[2], 0);
}

/// A weight with its state.
struct State {
  Tensor w, m, v, gradient, narrow;
  explicit State(int64_t size, at::ScalarType gradient_type)
      : w(at::randn({size})),
        m(at::randn({size}) * 0.1),
        v(at::rand({size}) * 0.1),
        gradient(at::randn({size}).to(gradient_type)),
        narrow(at::zeros({size}, at::kBFloat16)) {}
  void put_into(AdamTensor& t) const {
    t.weight = w.mutable_data_ptr<float>();
    t.gradient = gradient.const_data_ptr();
    t.exp_avg = m.mutable_data_ptr<float>();
    t.exp_avg_sq = v.mutable_data_ptr<float>();
    t.bf16_weight = static_cast<uint16_t*>(narrow.mutable_data_ptr());
    t.count = w.numel();
    t.is_bf16_gradient = gradient.scalar_type() == at::kBFloat16;
  }
};

AdamRule rule_of(bool is_decoupled) {
  return {.is_decoupled = is_decoupled,
          .lr = 0.01,
          .beta1 = 0.9,
          .beta2 = 0.95,
          .eps = 1e-6,
          .weight_decay = 0.1,
          .gradient_scale = 0.37,
          .step = 3};
}

std::vector<State> states_of(at::ScalarType type) {
  std::vector<State> states;
  for (const int64_t size : {int64_t{1}, int64_t{7}, kListPart + 3})
    states.emplace_back(size, type);
  for (size_t i = 0; i < TensorList<AdamTensor>::kMost; ++i) {
    states.emplace_back(1 + static_cast<int64_t>(i % 5), type);
  }
  return states;
}

void step_all(const std::vector<State>& states, const AdamRule& rule) {
  std::vector<AdamTensor> list(states.size());
  for (size_t i = 0; i < states.size(); ++i) states[i].put_into(list[i]);
  const auto scale = static_cast<float>(rule.gradient_scale);
  KernelSet<FiberLaunch>().adam(list, rule, &scale);
}

TEST(CudaAdam, OneStep_FollowsTheRuleInDoublePrecision) {
  for (const bool is_decoupled : {true, false}) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      const std::vector<State> states = states_of(type);
      const AdamRule rule = rule_of(is_decoupled);
      std::vector<std::array<Tensor, 3>> wants;
      for (const State& s : states) {
        Tensor w = s.w.to(at::kDouble);
        Tensor g = s.gradient.to(at::kDouble) * rule.gradient_scale;
        if (!is_decoupled) g = g + rule.weight_decay * w;
        const Tensor m = rule.beta1 * s.m.to(at::kDouble) + (1 - rule.beta1) * g;
        const Tensor v = rule.beta2 * s.v.to(at::kDouble) + (1 - rule.beta2) * g * g;
        const Tensor root = (v / (1 - std::pow(rule.beta2, 3))).sqrt() + rule.eps;
        if (is_decoupled) w = w * (1 - rule.lr * rule.weight_decay);
        wants.push_back({w - rule.lr / (1 - std::pow(rule.beta1, 3)) * m / root, m, v});
      }
      step_all(states, rule);
      for (size_t i = 0; i < states.size(); ++i) {
        const std::array<Tensor, 3> got{states[i].w, states[i].m, states[i].v};
        for (size_t k = 0; k < 3; ++k) {
          // At most sixteen roundings, of numbers below four times the largest.
          const double bound = 64 * 0x1p-24 * (1 + wants[i][k].abs().max().item<double>());
          EXPECT_LE((got[k].to(at::kDouble) - wants[i][k]).abs().max().item<double>(), bound);
        }
        EXPECT_TRUE(at::equal(states[i].narrow, states[i].w.to(at::kBFloat16)));
      }
    }
  }
}

TEST(CudaAdam, OneStep_HasTheBitsOfTheCpusKernel) {
  if (!__builtin_cpu_supports("fma")) GTEST_SKIP() << "this CPU rounds products before sums";
  for (const bool is_decoupled : {true, false}) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      const std::vector<State> states = states_of(type);
      const AdamRule rule = rule_of(is_decoupled);
      std::vector<State> wants;
      for (const State& s : states) {
        State& want = wants.emplace_back(s);
        for (Tensor* t : {&want.w, &want.m, &want.v, &want.narrow}) *t = t->clone();
        AdamRun run;
        run.weight = want.w.mutable_data_ptr<float>();
        run.gradient = want.gradient.const_data_ptr();
        run.is_bf16_gradient = type == at::kBFloat16;
        run.exp_avg = want.m.mutable_data_ptr<float>();
        run.exp_avg_sq = want.v.mutable_data_ptr<float>();
        run.bf16_weight = static_cast<uint16_t*>(want.narrow.mutable_data_ptr());
        adam_range(run, rule, 0, want.w.numel());
      }
      step_all(states, rule);
      for (size_t i = 0; i < states.size(); ++i) {
        EXPECT_TRUE(at::equal(states[i].w, wants[i].w)) << i;
        EXPECT_TRUE(at::equal(states[i].m, wants[i].m)) << i;
        EXPECT_TRUE(at::equal(states[i].v, wants[i].v)) << i;
        EXPECT_TRUE(at::equal(states[i].narrow, wants[i].narrow)) << i;
      }
    }
  }
}

}  // namespace
}  // namespace cleave::cuda_list_test
