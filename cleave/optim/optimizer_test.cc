#include "cleave/optim/optimizer.h"

#include <cmath>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/support/golden.h"
#include "tests/support/ranks.h"
#include "tests/support/thrown.h"

// Oracle: the published update rules, per element in fp64.
namespace cleave::optimizer_test {
namespace {

using test::largest_difference;
using test::numbers;
using Kind = OptimizerOptions::Kind;
using DecayOn = OptimizerOptions::DecayOn;

/// One parameter in fp64 with its moments.
struct Plain {
  Tensor w, m, v;

  void step(const OptimizerOptions& o, const Tensor& gradient, double lr, double decay, int t) {
    Tensor g = gradient;
    if (o.kind == Kind::kAdamW) {
      w = w * (1 - lr * decay);
    } else {
      g = g + decay * w;
    }
    if (o.kind == Kind::kSgd) {
      w = w - lr * g;
      return;
    }
    m = o.beta1 * m + (1 - o.beta1) * g;
    v = o.beta2 * v + (1 - o.beta2) * g * g;
    const Tensor m_hat = m / (1 - std::pow(o.beta1, t)), v_hat = v / (1 - std::pow(o.beta2, t));
    w = w - lr * m_hat / (v_hat.sqrt() + o.eps);
  }
};

std::shared_ptr<Parameter> parameter(const Tensor& value) {
  auto p = std::make_shared<Parameter>(value.sizes().vec(), Init::constant(0));
  p->set_leaf(value.clone());
  return p;
}

/// Four steps of a matrix and a vector against the rule.
void expect_rule(const OptimizerOptions& o, at::ScalarType type, double tolerance) {
  const std::vector<Tensor> start = {numbers({7, 9}, 1), numbers({5}, 2)};
  Parameters parameters;
  std::vector<Plain> plain;
  for (const Tensor& w : start) {
    const Tensor rounded = w.to(type);
    parameters.push_back(parameter(rounded));
    const Tensor zero = at::zeros_like(w);
    plain.push_back({rounded.to(at::kDouble), zero, zero});
  }
  Optimizer optimizer(parameters, o);
  for (int t = 1; t <= 4; ++t) {
    const double lr = 0.01 * t;
    for (size_t i = 0; i < plain.size(); ++i) {
      const Tensor g = numbers(start[i].sizes(), 10 * static_cast<uint64_t>(t) + i).to(type);
      parameters[i]->leaf().mutable_grad() = g;
      const double decay = i == 0 || o.decay_on == DecayOn::kAll ? o.weight_decay : 0;
      plain[i].step(o, g.to(at::kDouble), lr, decay, t);
    }
    optimizer.step(lr);
  }
  EXPECT_EQ(optimizer.num_steps(), 4);
  for (size_t i = 0; i < plain.size(); ++i) {
    EXPECT_LE(largest_difference(parameters[i]->leaf(), plain[i].w), tolerance) << i;
    if (o.kind == Kind::kSgd) continue;
    EXPECT_LE(largest_difference(optimizer.states()[i].exp_avg, plain[i].m), tolerance) << i;
    EXPECT_LE(largest_difference(optimizer.states()[i].exp_avg_sq, plain[i].v), 8 * tolerance);
  }
}

// A step rounds about ten numbers of size up to 4 for each weight: 4 x 10 x 4 roundings are 10^-5
// in fp32.
TEST(Optimizer, EveryKind_FollowsItsRule) {
  for (const Kind kind : {Kind::kAdamW, Kind::kAdam, Kind::kSgd}) {
    for (const DecayOn decay_on : {DecayOn::kMatrices, DecayOn::kAll}) {
      for (const double decay : {0.0, 0.3}) {
        const OptimizerOptions o{.kind = kind,
                                 .beta1 = 0.8,
                                 .beta2 = 0.95,
                                 .eps = 1e-6,
                                 .weight_decay = decay,
                                 .decay_on = decay_on};
        expect_rule(o, at::kDouble, 1e-13);
        expect_rule(o, at::kFloat, 160 * 0x1p-24);
      }
    }
  }
}

TEST(Optimizer, ScaledGradients_GiveTheStepOfSmallerOnes) {
  // 1/4 is exact, so both ways have the same bits. libtorch gets gradients scaled before the step.
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    const auto scaled = parameter(numbers({70}, 1).to(type));
    const auto smaller = parameter(numbers({70}, 1).to(type));
    Optimizer a({scaled}, {.weight_decay = 0.1}), b({smaller}, {.weight_decay = 0.1});
    for (uint64_t t = 1; t <= 2; ++t) {
      const Tensor g = numbers({70}, 10 + t).to(type);
      scaled->leaf().mutable_grad() = g;
      smaller->leaf().mutable_grad() = g / 4;
      a.step(0.1, 0.25);
      b.step(0.1);
    }
    EXPECT_TRUE(at::equal(scaled->leaf(), smaller->leaf())) << type;
  }
}

TEST(Optimizer, Bf16TensorsThatForwardReads_FollowTheLeaves) {
  for (const auto kind : {Kind::kAdamW, Kind::kSgd}) {  // Cleave's kernel; libtorch
    const auto p = parameter(numbers({37}, 1).to(at::kFloat));
    p->set_use(p->leaf().detach().to(at::kBFloat16));
    p->leaf().mutable_grad() = numbers({37}, 2).to(at::kFloat);
    Optimizer({p}, {.kind = kind}).step(0.1);
    EXPECT_TRUE(at::equal(p->use(), p->leaf().detach().to(at::kBFloat16)));
    EXPECT_FALSE(at::equal(p->leaf().detach(), numbers({37}, 1).to(at::kFloat)));
  }
}

TEST(Optimizer, Bf16Gradients_AreReadAsTheNumbersTheyAre) {
  const Tensor g = numbers({37}, 2).to(at::kBFloat16);
  Tensor after[2];
  for (const bool is_wide : {false, true}) {
    const auto p = parameter(numbers({37}, 1).to(at::kFloat));
    p->leaf().mutable_grad() = is_wide ? g.to(at::kFloat) : g;
    Optimizer({p}, {.weight_decay = 0.1}).step(0.1);
    after[is_wide] = p->leaf().detach();
  }
  EXPECT_TRUE(at::equal(after[0], after[1]));
}

// A leaf that is sharded over ranks must get the same bits as the whole one.
TEST(Optimizer, LeafInPieces_GetsTheBitsOfTheWhole) {
  const Tensor w = numbers({53}, 1).to(at::kFloat), g = numbers({53}, 2).to(at::kFloat);
  const auto whole = parameter(w);
  whole->leaf().mutable_grad() = g;
  Optimizer({whole}, {.decay_on = DecayOn::kAll}).step(0.1);
  int64_t begin = 0;
  for (const int64_t size : {3, 17, 33}) {
    const auto piece = parameter(w.narrow(0, begin, size));
    piece->leaf().mutable_grad() = g.narrow(0, begin, size);
    Optimizer({piece}, {.decay_on = DecayOn::kAll}).step(0.1);
    EXPECT_TRUE(at::equal(piece->leaf(), whole->leaf().narrow(0, begin, size))) << begin;
    begin += size;
  }
}

TEST(Optimizer, ResumedFromItsState_ContinuesWithTheSameBits) {
  const OptimizerOptions o{.weight_decay = 0.1};
  const auto gradient = [](int t) { return numbers({6}, static_cast<uint64_t>(t)).to(at::kFloat); };
  const auto once = parameter(numbers({6}, 50).to(at::kFloat));
  Optimizer whole({once}, o);
  std::shared_ptr<Parameter> resumed;
  std::unique_ptr<Optimizer> second;
  for (int t = 0; t < 6; ++t) {
    if (t == 3) {
      resumed = parameter(once->leaf().detach());
      second = std::make_unique<Optimizer>(Parameters{resumed}, o);
      second->states()[0].exp_avg.copy_(whole.states()[0].exp_avg);
      second->states()[0].exp_avg_sq.copy_(whole.states()[0].exp_avg_sq);
      second->set_num_steps(whole.num_steps());
    }
    once->leaf().mutable_grad() = gradient(t);
    whole.step(0.01);
    if (!second) continue;
    resumed->leaf().mutable_grad() = gradient(t);
    second->step(0.01);
  }
  EXPECT_TRUE(at::equal(once->leaf(), resumed->leaf()));
}

TEST(Optimizer, RankThatHoldsNothing_StepsAndZeroGradForgets) {
  const auto empty = parameter(at::zeros({0, 3})), some = parameter(at::ones({2}));
  Optimizer optimizer({empty, some}, {});
  empty->leaf().mutable_grad() = at::zeros({0, 3});
  some->leaf().mutable_grad() = at::ones({2});
  EXPECT_NO_THROW(optimizer.step(0.1));
  EXPECT_LT(some->leaf()[0].item<float>(), 1);
  optimizer.zero_grad();
  EXPECT_FALSE(some->leaf().grad().defined());
}

// The update reads memory in order, so a leaf must not be a strided view.
TEST(Optimizer, WeightGivenAsATransposedView_StepsAsAnyOther) {
  const Tensor w = numbers({3, 4}, 1), g = numbers({4, 3}, 2);
  const auto view = std::make_shared<Parameter>(std::vector<int64_t>{4, 3}, Init::constant(0));
  view->set_leaf(w.t());
  const auto plain = parameter(w.t().contiguous());
  for (const auto& p : {view, plain}) {
    p->leaf().mutable_grad() = g.clone();
    Optimizer optimizer({p}, {.weight_decay = 0.1});
    optimizer.step(0.01);
  }
  EXPECT_TRUE(at::equal(view->leaf(), plain->leaf()));
}

// As a layer with weights [E, K, N] may give it. fp32 is stepped by Cleave's kernel, fp64 by
// libtorch's.
TEST(Optimizer, GradientThatIsATransposedView_StepsAsAnyOther) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    for (const Kind kind : {Kind::kAdamW, Kind::kAdam, Kind::kSgd}) {
      const Tensor g = numbers({3, 4}, 2).to(type);
      const auto plain = parameter(numbers({4, 3}, 1).to(type));
      const auto other = parameter(plain->leaf().detach());
      plain->leaf().mutable_grad() = g.t().contiguous();
      other->leaf().mutable_grad() = g.t();
      for (const auto& p : {plain, other}) Optimizer({p}, {.kind = kind}).step(0.01);
      EXPECT_TRUE(at::equal(plain->leaf(), other->leaf())) << type << static_cast<int>(kind);
    }
  }
}

TEST(Optimizer, Names_AreReadAndOthersListed) {
  EXPECT_EQ(OptimizerOptions::kind_from_name("adamw"), Kind::kAdamW);
  EXPECT_EQ(OptimizerOptions::kind_from_name("adam"), Kind::kAdam);
  EXPECT_EQ(OptimizerOptions::kind_from_name("sgd"), Kind::kSgd);
  EXPECT_EQ(OptimizerOptions::kind_from_name("muon"), Kind::kMuon);
  EXPECT_EQ(OptimizerOptions::decay_from_name("matrices"), DecayOn::kMatrices);
  EXPECT_EQ(OptimizerOptions::decay_from_name("all"), DecayOn::kAll);
  const Error kind = test::thrown_by([] { (void)OptimizerOptions::kind_from_name("lamb"); });
  EXPECT_EQ(kind.code(), Code::kUsage);
  EXPECT_STREQ(kind.what(), "optimizer 'lamb' is unknown; expected adamw, adam, sgd or muon");
  EXPECT_EQ(test::thrown_by([] { (void)OptimizerOptions::decay_from_name("none"); }).code(),
            Code::kUsage);
}

// Oracle: the same steps on whole tensors.
TEST(Optimizer, ModelShardedBetweenTwoSteps_ContinuesWithItsMoments) {
  const Tensor start = numbers({5, 4}, 1);
  const auto gradient = [](uint64_t step) { return numbers({5, 4}, 10 + step); };
  const auto whole = parameter(start);
  Optimizer want({whole}, {.weight_decay = 0.1});
  for (uint64_t step = 0; step < 4; ++step) {
    whole->leaf().mutable_grad() = gradient(step);
    want.step(0.1);
  }
  for (const uint64_t shard_before : {uint64_t{0}, uint64_t{2}}) {
    test::on_ranks(3, [&](const Axis& axis) {
      const auto p = parameter(start);
      Optimizer optimizer({p}, {.weight_decay = 0.1});
      for (uint64_t step = 0; step < 4; ++step) {
        if (step == shard_before) p->shard(axis, 0, Split::balanced(5, 3));
        p->leaf().mutable_grad() = p->part_of(gradient(step));
        optimizer.step(0.1);
        optimizer.zero_grad();
      }
      EXPECT_LE(largest_difference(p->leaf(), test::slice_of(*p, whole->leaf())), 1e-14);
      const Tensor moment = test::slice_of(*p, want.states()[0].exp_avg);
      EXPECT_LE(largest_difference(optimizer.states()[0].exp_avg, moment), 1e-14);
    });
  }
}

// Oracle: the rule with each parameter's own rate and decay.
TEST(Optimizer, SettingsOfSingleParameters_ReplaceTheCommonOnes) {
  for (const Kind kind : {Kind::kAdamW, Kind::kAdam, Kind::kSgd}) {
    OptimizerOptions o{.kind = kind, .weight_decay = 0.1};
    o.own = {{"a", {.lr_factor = 0.25}},
             {"b", {.lr_factor = 0}},
             {"c", {.weight_decay = 0.5}},
             {"d", {.lr_factor = 2, .weight_decay = 0}}};
    const std::vector<std::pair<double, double>> factor_and_decay = {
        {0.25, 0.1}, {0, 0.1}, {1, 0.5}, {2, 0}, {1, 0.1}};
    Parameters parameters;
    std::vector<Plain> plain;
    for (uint64_t i = 0; i < 5; ++i) {
      // "c" is a vector: its own decay applies although vectors do not decay.
      const Tensor start = i == 2 ? numbers({5}, i) : numbers({3, 4}, i);
      parameters.push_back(parameter(start));
      parameters.back()->set_name(std::string(1, static_cast<char>('a' + i)));
      plain.push_back({start, at::zeros_like(start), at::zeros_like(start)});
    }
    Optimizer optimizer(parameters, o);
    for (int t = 1; t <= 3; ++t) {
      for (uint64_t i = 0; i < 5; ++i) {
        const Tensor gradient =
            numbers(plain[i].w.sizes().vec(), 10 * i + static_cast<uint64_t>(t));
        parameters[i]->leaf().mutable_grad() = gradient;
        plain[i].step(o, gradient, 0.1 * factor_and_decay[i].first, factor_and_decay[i].second, t);
      }
      optimizer.step(0.1);
    }
    for (size_t i = 0; i < 5; ++i) {
      EXPECT_LE(largest_difference(parameters[i]->leaf(), plain[i].w), 1e-13) << i;
    }
  }
}

// As in PyTorch. Weights in fp32 are stepped by Cleave's kernel, others by libtorch.
TEST(Optimizer, WeightsThatAreTrainedInSomeStepsOnly_CountTheirOwn) {
  for (const Kind kind : {Kind::kAdamW, Kind::kAdam}) {
    for (const at::ScalarType type : {at::kDouble, at::kFloat}) {
      const OptimizerOptions o{.kind = kind, .weight_decay = 0.1};
      Parameters parameters;
      std::vector<Plain> plain;
      for (uint64_t i = 0; i < 3; ++i) {
        const Tensor start = numbers({3, 4}, i).to(type);
        parameters.push_back(parameter(start));
        plain.push_back({start.to(at::kDouble), at::zeros({3, 4}, at::kDouble),
                         at::zeros({3, 4}, at::kDouble)});
      }
      const std::vector<std::vector<bool>> is_trained = {{true, true, true, true, true},
                                                         {false, false, false, true, true},
                                                         {true, false, true, false, true}};
      std::vector<int> counts(3, 0);
      Optimizer optimizer(parameters, o);
      for (size_t t = 0; t < 5; ++t) {
        for (uint64_t i = 0; i < 3; ++i) {
          const bool is_now = is_trained[i][t];
          parameters[i]->leaf().set_requires_grad(is_now);
          const Tensor gradient = numbers({3, 4}, 10 * i + t + 20).to(type);
          parameters[i]->leaf().mutable_grad() = is_now ? gradient : Tensor();
          if (is_now) plain[i].step(o, gradient.to(at::kDouble), 0.1, 0.1, ++counts[i]);
        }
        optimizer.step(0.1);
      }
      for (size_t i = 0; i < 3; ++i) {
        EXPECT_LE(largest_difference(parameters[i]->leaf().to(at::kDouble), plain[i].w),
                  type == at::kDouble ? 1e-13 : 1e-6)
            << i << " " << toString(type);
        EXPECT_EQ(optimizer.states()[i].num_steps, counts[i]);
      }
    }
  }
}

TEST(LrSchedule, WarmUp_RisesFromOneStepsShareToThePeak) {
  for (const auto kind : {LrSchedule::Kind::kCosine, LrSchedule::Kind::kLinear,
                          LrSchedule::Kind::kConstant, LrSchedule::Kind::kWsd}) {
    const LrSchedule s{
        .kind = kind, .peak = 0.4, .min = 0.1, .warmup = 8, .decay = 4, .num_steps = 40};
    for (int64_t t = 0; t < 8; ++t) {
      EXPECT_DOUBLE_EQ(s.at(t), 0.4 * static_cast<double>(t + 1) / 8);
    }
    EXPECT_DOUBLE_EQ(s.at(8), 0.4);
  }
}

TEST(LrSchedule, AfterWarmUp_FallsToZeroInItsForm) {
  const LrSchedule cosine{.peak = 2, .warmup = 10, .num_steps = 50};
  EXPECT_DOUBLE_EQ(cosine.at(30), 1);                                      // half way
  EXPECT_NEAR(cosine.at(20), 2 * std::pow(std::cos(M_PI / 8), 2), 1e-15);  // a quarter
  EXPECT_NEAR(cosine.at(50), 0, 1e-15);
  EXPECT_NEAR(cosine.at(70), 0, 1e-15);  // and no further
  const LrSchedule linear{
      .kind = LrSchedule::Kind::kLinear, .peak = 2, .warmup = 10, .num_steps = 50};
  EXPECT_DOUBLE_EQ(linear.at(20), 1.5);
  EXPECT_NEAR(linear.at(49), 0.05, 1e-15);
  EXPECT_DOUBLE_EQ(linear.at(50), 0);
  EXPECT_DOUBLE_EQ(linear.at(60), 0);
  const LrSchedule constant{.kind = LrSchedule::Kind::kConstant, .peak = 2, .num_steps = 50};
  EXPECT_DOUBLE_EQ(constant.at(0), 2);
  EXPECT_DOUBLE_EQ(constant.at(49), 2);
}

// Oracle: get_wsd_schedule (decay_type linear, min_lr_ratio 0.1) and
// get_cosine_with_min_lr_schedule_with_warmup of transformers 5.
TEST(LrSchedule, WsdAndMinimum_AreThoseOfTransformers) {
  const LrSchedule wsd{.kind = LrSchedule::Kind::kWsd,
                       .peak = 0.4,
                       .min = 0.04,
                       .warmup = 4,
                       .decay = 8,
                       .num_steps = 20};
  const std::vector<double> falling = {0.4,   0.355, 0.31,  0.265, 0.22,
                                       0.175, 0.13,  0.085, 0.04,  0.04};
  for (int64_t t = 4; t < 12; ++t) EXPECT_DOUBLE_EQ(wsd.at(t), 0.4) << t;
  for (size_t i = 0; i < falling.size(); ++i) {
    EXPECT_NEAR(wsd.at(12 + static_cast<int64_t>(i)), falling[i], 1e-15) << i;
  }
  const LrSchedule cosine{.peak = 0.4, .min = 0.04, .warmup = 4, .num_steps = 20};
  EXPECT_NEAR(cosine.at(5), 0.3965413504725815, 1e-15);
  EXPECT_NEAR(cosine.at(9), 0.32000264194352845, 1e-15);
  EXPECT_NEAR(cosine.at(19), 0.04345864952741852, 1e-15);
  EXPECT_NEAR(cosine.at(25), 0.04, 1e-15);
  const LrSchedule linear{
      .kind = LrSchedule::Kind::kLinear, .peak = 0.4, .min = 0.04, .warmup = 4, .num_steps = 20};
  EXPECT_NEAR(linear.at(12), 0.22, 1e-15);
  EXPECT_NEAR(linear.at(20), 0.04, 1e-15);
}

// 0.001 + (0.01 - 0.001) in doubles is above 0.01.
TEST(LrSchedule, FallFromPeakToMinimum_HasExactlyTheseAtItsEnds) {
  for (const auto kind :
       {LrSchedule::Kind::kCosine, LrSchedule::Kind::kLinear, LrSchedule::Kind::kWsd}) {
    const LrSchedule schedule{
        .kind = kind, .peak = 0.01, .min = 0.001, .warmup = 2, .decay = 4, .num_steps = 6};
    EXPECT_EQ(schedule.at(2), 0.01);
    EXPECT_EQ(schedule.at(6), 0.001);
  }
}

TEST(LrSchedule, WsdWithoutDecayOrWithoutStableSteps_IsConstantOrLinear) {
  const LrSchedule stable{.kind = LrSchedule::Kind::kWsd, .peak = 2, .num_steps = 10};
  EXPECT_DOUBLE_EQ(stable.at(9), 2);
  const LrSchedule falls{
      .kind = LrSchedule::Kind::kWsd, .peak = 2, .warmup = 2, .decay = 8, .num_steps = 10};
  EXPECT_DOUBLE_EQ(falls.at(2), 2);
  EXPECT_DOUBLE_EQ(falls.at(6), 1);
}

TEST(LrSchedule, RunOfWarmUpAloneOrOneStep_StaysFinite) {
  const LrSchedule short_run{.peak = 1, .warmup = 10, .num_steps = 4};
  EXPECT_DOUBLE_EQ(short_run.at(3), 0.4);
  const LrSchedule one{.peak = 1, .warmup = 0, .num_steps = 1};
  EXPECT_DOUBLE_EQ(one.at(0), 1);
  const LrSchedule exact{.peak = 1, .warmup = 4, .num_steps = 4};
  EXPECT_TRUE(std::isfinite(exact.at(4)));
}

TEST(LrSchedule, Names_AreReadAndOthersListed) {
  EXPECT_EQ(LrSchedule::kind_from_name("cosine"), LrSchedule::Kind::kCosine);
  EXPECT_EQ(LrSchedule::kind_from_name("linear"), LrSchedule::Kind::kLinear);
  EXPECT_EQ(LrSchedule::kind_from_name("constant"), LrSchedule::Kind::kConstant);
  EXPECT_EQ(LrSchedule::kind_from_name("wsd"), LrSchedule::Kind::kWsd);
  const Error error = test::thrown_by([] { (void)LrSchedule::kind_from_name("step"); });
  EXPECT_EQ(error.code(), Code::kUsage);
  EXPECT_STREQ(error.what(),
               "schedule 'step' is unknown; expected cosine, linear, constant or wsd");
}

}  // namespace
}  // namespace cleave::optimizer_test
