#include <cmath>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/parallel/parallelize.h"
#include "cleave/parallel/zero1.h"
#include "cleave/torch_internals/node.h"
#include "tests/support/ranks.h"
#include "tests/support/thrown.h"
#include "tests/support/tiny_sequence.h"

// What an own training loop may do beside the usual order of calls.
namespace cleave::training_step_test {
namespace {

using test::thrown_by;
using testing::HasSubstr;

constexpr int64_t kBatch = 4, kTokens = 5;

Tensor batch_of(int64_t step) {
  return test::ids({kBatch, kTokens}, test::TinyOptions().vocab, static_cast<uint64_t>(step));
}

/// Throws in backward while `fails` is true.
class FailingBackward : public Wrap {
 public:
  explicit FailingBackward(const bool& fails) : fails_(fails) {}

  DTensor call(Layer& /*layer*/, const DTensor& x, const Context& context,
               const Next& next) override {
    const DTensor y = next(x, context);
    return y.with(differentiable(
        "failing", y.local(), [](const Tensor& t) { return t; },
        [&fails = fails_](const Tensor& gradient) {
          CLEAVE_CHECK(!fails, Code::kNumerics, "this backward fails");
          return gradient;
        }));
  }

 private:
  const bool& fails_;
};

/// A model on one layout, as an own loop uses it.
class Loop {
 public:
  /// `calls`: the blocks of the sequence in call order.
  Loop(World& world, ParallelConfig config, const std::vector<size_t>& calls = {0, 1, 2},
       double dropout = 0)
      : model_({.num_blocks = 3, .dropout = dropout}) {
    config.plan = config.tp > 1 ? test::TinySequence::plan(Replicate{}) : Plan();
    const Mesh mesh = Mesh::build(world, {{"pp", config.pp}, {"dp", config.dp}, {"tp", config.tp}});
    axes_ = {.pp = mesh["pp"], .dp = mesh["dp"], .tp = mesh["tp"]};
    const std::vector<Layer*> all = model_.sequence();
    all[1]->attach(std::make_unique<FailingBackward>(backward_fails));
    std::vector<Layer*> sequence{all[0]};
    for (const size_t block : calls) sequence.push_back(all[1 + block]);
    sequence.insert(sequence.end(), all.end() - 2, all.end());
    parts_ = parallelize(model_, sequence, axes_, config);
    materialize(model_, {.seed = 1, .dtype = config.leaf_type()});
    parts_.gradients->refresh_weights();
  }

  /// The global loss of a batch, whose gradients stay where backward leaves them.
  double backward(int64_t step, double factor = 1) {
    const Tensor ids =
        batch_of(step).chunk(axes_.dp.size(), 0)[static_cast<size_t>(axes_.dp.rank())];
    std::vector<MicroBatch> batches;
    for (const Tensor& one : ids.split(1)) {
      Context context;
      context.training = true;
      context.step = step;
      context.first_sample = ids.size(0) * axes_.dp.rank() + std::ssize(batches);
      batches.push_back({.input = DTensor(one, axes_.tp, Replicate{}), .context = context});
    }
    const auto losses = parts_.pipeline->run_train(batches, [&](const DTensor& logits, size_t i) {
      const Tensor labels = next_token_labels(ids.narrow(0, static_cast<int64_t>(i), 1));
      return cross_entropy(logits, labels, {.valid_tokens = kBatch * (kTokens - 1)}).local() *
             factor;
    });
    double sum = 0;
    for (const double loss : losses) sum += loss;
    return axes_.dp.all_reduce(at::scalar_tensor(sum, at::kDouble), "loss").item<double>();
  }

  void begin() { parts_.gradients->begin(static_cast<size_t>(kBatch / axes_.dp.size())); }

  /// The loss, and the norm of the gradients.
  std::pair<double, double> step(int64_t step) {
    begin();
    const double loss = backward(step);
    parts_.gradients->complete();
    const double norm = clip_grad_norm(parts_.parameters(), 1.0).value;
    parts_.optimizer->step(1e-2);
    parts_.optimizer->zero_grad();
    return {loss, norm};
  }

  test::TinySequence& model() { return model_; }
  Parallelized& parts() { return parts_; }
  const ParallelAxes& axes() { return axes_; }

  bool backward_fails = false;  ///< in the first block

 private:
  test::TinySequence model_;
  ParallelAxes axes_;
  Parallelized parts_;
};

void on_layout(const ParallelConfig& config, const std::function<void(World&)>& body) {
  test::on_world(config.num_ranks(), body);
}

/// Layouts whose gradients take every path. Buckets of one parameter start during backward.
std::vector<ParallelConfig> layouts() {
  return {{},
          {.compute_type = at::kBFloat16},
          {.dp = 2, .bucket_bytes = 1},
          {.dp = 2, .compute_type = at::kBFloat16, .bucket_bytes = 1},
          {.dp = 2, .sharding = DataSharding::kZero1, .bucket_bytes = 1},
          {.dp = 2, .sharding = DataSharding::kZero1, .compute_type = at::kBFloat16},
          {.dp = 2, .tp = 2, .bucket_bytes = 1},
          {.pp = 2, .dp = 2, .bucket_bytes = 1}};
}

// Oracle: the run that never sees the batch.
TEST(TrainingStep, ThatIsGivenUp_LeavesNothing) {
  std::vector<ParallelConfig> all = layouts();
  all.push_back({.dp = 2, .sharding = DataSharding::kFsdp});
  all.push_back({.dp = 2, .sharding = DataSharding::kFsdp, .compute_type = at::kBFloat16});
  for (const ParallelConfig& config : all) {
    on_layout(config, [&](World& world) {
      Loop loop(world, config), straight(world, config);
      for (int64_t step = 0; step < 3; ++step) {
        loop.begin();
        loop.backward(100 + step, NAN);
        loop.parts().optimizer->zero_grad();
        EXPECT_EQ(loop.step(step), straight.step(step)) << config.describe() << " step " << step;
      }
    });
  }
}

// Oracle: the run that never sees the batch. With FSDP, sums of later layers are started by then.
TEST(TrainingStep, WhoseBackwardThrowsOnAllRanks_LeavesNothingAfterZeroGrad) {
  std::vector<ParallelConfig> all = layouts();
  std::erase_if(all, [](const auto& config) { return config.pp > 1; });  // other stages would wait
  for (const RecomputeKind recompute : {RecomputeKind::kNone, RecomputeKind::kFull}) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      for (const auto& [dp, tp] : {std::pair(1, 1), std::pair(2, 1), std::pair(1, 2)}) {
        all.push_back({.dp = dp,
                       .tp = tp,
                       .sharding = DataSharding::kFsdp,
                       .recompute = recompute,
                       .compute_type = type});
      }
    }
  }
  for (const ParallelConfig& config : all) {
    on_layout(config, [&](World& world) {
      Loop loop(world, config), straight(world, config);
      for (int64_t step = 0; step < 3; ++step) {
        loop.begin();
        loop.backward_fails = true;
        EXPECT_EQ(thrown_by([&] { loop.backward(100 + step); }).code(), Code::kNumerics);
        loop.backward_fails = false;
        loop.parts().optimizer->zero_grad();
        EXPECT_EQ(loop.step(step), straight.step(step)) << config.describe() << " step " << step;
      }
    });
  }
}

// Where nothing is summed over ranks and forward reads the leaves, a late gradient is not wrong.
TEST(TrainingStep, BackwardAfterComplete_IsRefusedByClipAndStep) {
  for (const ParallelConfig& config : layouts()) {
    if (config.num_ranks() == 1 && config.compute_type == at::kFloat) continue;
    on_layout(config, [&](World& world) {
      Loop loop(world, config);
      loop.begin();
      loop.backward(100);
      loop.parts().gradients->complete();
      const std::vector<std::function<void()>> uses{
          [&] { (void)clip_grad_norm(loop.parts().parameters(), 1); },
          [&] { loop.parts().optimizer->step(0); }};
      const bool is_zero1 = config.sharding == DataSharding::kZero1;
      for (const auto& use : uses) use();
      loop.backward(101);
      for (size_t i = is_zero1 ? 1 : 0; i < uses.size(); ++i) {
        const Error error = thrown_by(uses[i]);
        EXPECT_EQ(error.code(), Code::kUsage);
        EXPECT_THAT(error.what(),
                    HasSubstr(is_zero1 ? "before the gradients were summed" : "backward ran after"))
            << config.describe();
      }
      loop.parts().optimizer->zero_grad();
      EXPECT_GT(loop.step(0).second, 0);
    });
  }
}

// Oracle: clip_grad_norm, which finds the axes by itself.
TEST(TrainingStep, NormOverTooFewRanks_IsRefused) {
  std::vector<ParallelConfig> all = layouts();
  all.push_back({.dp = 2, .sharding = DataSharding::kFsdp});
  for (const ParallelConfig& config : all) {
    on_layout(config, [&](World& world) {
      Loop loop(world, config);
      loop.begin();
      loop.backward(0);
      loop.parts().gradients->complete();
      const Parameters& parameters = loop.parts().parameters();
      const Axis ranks = Mesh::build(world, {{"ranks", world.size()}})["ranks"];
      const bool is_whole =
          config.tp == 1 && config.pp == 1 && config.sharding == DataSharding::kNone;
      if (is_whole) {
        EXPECT_GT(gradient_norm(parameters, Axis()).value, 0);
      } else {
        const Error error = thrown_by([&] { (void)gradient_norm(parameters, Axis()); });
        EXPECT_EQ(error.code(), Code::kUsage);
        EXPECT_THAT(error.what(), HasSubstr("give an axis of all ranks"));
      }
      if (!is_whole && config.dp == 1) {
        EXPECT_DOUBLE_EQ(gradient_norm(parameters, ranks).value,
                         clip_grad_norm(parameters, 1e9).value);
      }
    });
  }
}

TEST(TrainingStep, GradientThatTheLoopChangesAfterComplete_IsTaken) {
  for (const ParallelConfig& config : layouts()) {
    on_layout(config, [&](World& world) {
      Loop loop(world, config);
      loop.begin();
      loop.backward(0);
      loop.parts().gradients->complete();
      const double norm = clip_grad_norm(loop.parts().parameters(), 1e9).value;
      for (const auto& p : loop.parts().parameters()) p->leaf().mutable_grad().mul_(0.5);
      EXPECT_EQ(clip_grad_norm(loop.parts().parameters(), 1e9).value, norm / 2);
      loop.parts().optimizer->step(1e-2);
    });
  }
}

/// The second of two losses is computed before a step and its backward runs after it.
void expect_late_backward_refused(const ParallelConfig& config) {
  test::TinySequence model({.num_blocks = 2});
  const Parallelized p = parallelize(model, model.sequence(), {}, config);
  materialize(model, {.seed = 1});
  p.gradients->refresh_weights();
  // With recompute, only the blocks are trained: other layers would refuse by themselves.
  const bool recomputes = config.recompute == RecomputeKind::kFull;
  for (const auto& weight : model.parameters()) {
    if (recomputes && !weight->name().starts_with("blocks.")) {
      weight->leaf().set_requires_grad(false);
    }
  }
  const auto loss = [&] {
    DTensor x(batch_of(0), Axis(), Replicate{});
    for (Layer* layer : model.sequence()) x = (*layer)(x, Context());
    return cross_entropy(x, next_token_labels(batch_of(0))).local();
  };
  const Tensor first = loss(), second = loss();
  p.gradients->begin(0);
  first.backward();
  p.gradients->complete();
  p.optimizer->step(1e-2);
  p.optimizer->zero_grad();
  try {
    second.backward();
    ADD_FAILURE() << config.describe() << " " << toString(config.compute_type);
  } catch (const std::exception& error) {
    EXPECT_THAT(error.what(), testing::ContainsRegex("inplace|in place"));
  }
}

// As libtorch does; its message has "inplace operation".
TEST(TrainingStep, StepBetweenForwardAndBackward_IsRefused) {
  for (const DataSharding sharding :
       {DataSharding::kNone, DataSharding::kZero1, DataSharding::kFsdp}) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      for (const RecomputeKind recompute : {RecomputeKind::kNone, RecomputeKind::kFull}) {
        expect_late_backward_refused(
            {.sharding = sharding, .recompute = recompute, .compute_type = type});
      }
    }
  }
}

TEST(TrainingStep, BackwardBeforeBegin_IsRefusedUntilItIsDiscarded) {
  for (const ParallelConfig& config : layouts()) {
    on_layout(config, [&](World& world) {
      Loop loop(world, config), straight(world, config);
      loop.backward(7);
      const Error error = thrown_by([&] { loop.begin(); });
      EXPECT_EQ(error.code(), Code::kUsage);
      EXPECT_THAT(error.what(), HasSubstr("call zero_grad() to discard its gradients"));
      loop.parts().optimizer->zero_grad();
      EXPECT_EQ(loop.step(0), straight.step(0));
    });
  }
}

// Oracle: one rank, which sums nothing over ranks. Its dropout has another mask in each call.
TEST(TrainingStep, LayerThatIsCalledSeveralTimes_HasItsWholeGradient) {
  constexpr double kDropout = 0.3;
  const std::vector<size_t> calls{0, 1, 0, 1, 0, 2};
  std::vector<std::pair<double, double>> want;
  on_layout({}, [&](World& world) {
    Loop loop(world, {}, calls, kDropout);
    for (int64_t step = 0; step < 3; ++step) want.push_back(loop.step(step));
  });
  for (ParallelConfig config : layouts()) {
    if (config.compute_type == at::kBFloat16) continue;
    for (const RecomputeKind recompute : {RecomputeKind::kNone, RecomputeKind::kFull}) {
      config.recompute = recompute;
      on_layout(config, [&](World& world) {
        Loop loop(world, config, calls, kDropout);
        for (size_t step = 0; step < want.size(); ++step) {
          const auto [loss, norm] = loop.step(static_cast<int64_t>(step));
          EXPECT_NEAR(loss, want[step].first, 1e-5 * loss) << config.describe();
          EXPECT_NEAR(norm, want[step].second, 1e-4 * norm) << config.describe();
        }
      });
    }
  }
}

TEST(TrainingStep, MorePassesThanBeginAnnounced_AreRefused) {
  const ParallelConfig config{.dp = 2, .bucket_bytes = 1};
  on_layout(config, [&](World& world) {
    Loop loop(world, config);
    loop.begin();
    loop.backward(0);
    const Error error = thrown_by([&] { loop.backward(1); });
    EXPECT_EQ(error.code(), Code::kUsage);
    EXPECT_THAT(error.what(), HasSubstr("announced 2 micro-batches, and backward ran for more"));
  });
}

TEST(TrainingStep, WeightsFilledAfterTheRefresh_AreRefused) {
  const ParallelConfig config{.compute_type = at::kBFloat16};
  on_layout(config, [&](World& world) {
    Loop loop(world, config);
    const auto& p = loop.parts().parameters().front();
    p->set_leaf(p->leaf().detach().clone());
    const Error error = thrown_by([&] { loop.begin(); });
    EXPECT_EQ(error.code(), Code::kUsage);
    EXPECT_THAT(error.what(), HasSubstr("embed.weight was filled after refresh_weights()"));
    loop.parts().gradients->refresh_weights();
    EXPECT_GT(loop.step(0).second, 0);
  });
}

// Leaves that forward reads themselves need no refresh.
TEST(TrainingStep, WeightsThatChangeBetweenSteps_AreReadOrRefused) {
  for (const ParallelConfig& config : layouts()) {
    on_layout(config, [&](World& world) {
      Loop loop(world, config);
      loop.step(0);
      const at::NoGradGuard no_grad;
      for (const auto& p : loop.parts().parameters()) p->leaf().clamp_(-0.1, 0.1);
      const bool has_copies =
          config.compute_type != at::kFloat || config.sharding == DataSharding::kZero1;
      if (has_copies) {
        const at::AutoGradMode grad_mode(true);
        const Error error = thrown_by([&] { loop.step(1); });
        EXPECT_EQ(error.code(), Code::kUsage) << config.describe();
        EXPECT_THAT(error.what(), HasSubstr("call refresh_weights() of the GradientSync"));
        loop.parts().optimizer->zero_grad();
      }
      loop.parts().gradients->refresh_weights();
      for (const auto& p : loop.parts().parameters()) {
        EXPECT_LE(p->use().abs().max().item<double>(), 0.1001) << p->name();
      }
      const at::AutoGradMode grad_mode(true);
      EXPECT_GT(loop.step(1).second, 0);
    });
  }
}

// Oracle: the run without the other loss. An adversary is not trained by the generator's loss.
TEST(TrainingStep, WeightsThatAreNotTrainedInABackward_KeepNothingOfIt) {
  for (const ParallelConfig& config : layouts()) {
    on_layout(config, [&](World& world) {
      Loop loop(world, config), straight(world, config);
      const auto set_trained = [&](bool is_trained) {
        for (const auto& p : loop.parts().parameters()) p->leaf().set_requires_grad(is_trained);
      };
      for (int64_t step = 0; step < 3; ++step) {
        set_trained(false);
        // The loss of another model, which reads this one's output.
        const DTensor ids(batch_of(100 + step), loop.axes().tp, Replicate{});
        if (config.pp == 1) {
          DTensor x = ids;
          for (Layer* layer : loop.model().sequence()) x = (*layer)(x, Context());
          const Tensor factor = at::ones({}, x.local().options()).requires_grad_();
          (x.local() * factor).sum().backward();
        }
        set_trained(true);
        EXPECT_EQ(loop.step(step), straight.step(step)) << config.describe() << " step " << step;
      }
    });
  }
}

// As with torch.optim: without a gradient, neither decay nor momentum moves a weight.
TEST(TrainingStep, LeafThatNoLongerRequiresGrad_StaysAsItIs) {
  std::vector<ParallelConfig> all = layouts();
  all.push_back({.dp = 2, .sharding = DataSharding::kFsdp});
  for (const ParallelConfig& config : all) {
    on_layout(config, [&](World& world) {
      Loop loop(world, config);
      loop.step(0);
      std::vector<Tensor> before;
      const auto is_frozen = [](const Parameter& p) { return p.name().starts_with("blocks.1."); };
      for (const auto& p : loop.parts().parameters()) {
        if (is_frozen(*p)) p->leaf().set_requires_grad(false);
        before.push_back(p->leaf().detach().clone());
      }
      for (int64_t step = 1; step < 4; ++step) loop.step(step);
      for (size_t i = 0; i < before.size(); ++i) {
        const Parameter& p = *loop.parts().parameters()[i];
        if (p.leaf().numel() == 0) continue;
        EXPECT_EQ(p.leaf().equal(before[i]), is_frozen(p)) << p.name() << " " << config.describe();
      }
    });
  }
}

// Oracle: the list with each parameter once. Lists of two models that share one have it twice.
TEST(TrainingStep, ParameterThatIsListedTwice_IsTrainedOnce) {
  test::on_world(2, [](World& world) {
    const Axis dp = Mesh::build(world, {{"dp", 2}})["dp"];
    std::vector<std::pair<double, Tensor>> results;
    for (const bool is_twice : {false, true}) {
      Linear layer({.in_features = 3, .out_features = 2});
      materialize(layer, {.seed = 1});
      Parameters list = layer.parameters();
      if (is_twice) list.push_back(list.front());
      GradientSync sync(list, dp);
      Optimizer optimizer(list, {.weight_decay = 0.1});
      sync.begin(1);
      layer(DTensor(at::ones({1, 3}) + dp.rank(), Axis(), Replicate{}), Context())
          .local()
          .sum()
          .backward();
      sync.complete();
      const double norm = gradient_norm(list, Axis()).value;
      optimizer.step(0.1);
      results.emplace_back(norm, layer.weight()->leaf().detach());
    }
    EXPECT_EQ(results[0].first, results[1].first);
    EXPECT_TRUE(results[0].second.equal(results[1].second));
  });
}

TEST(TrainingStep, SettingsOfParametersWithoutNames_AreRefused) {
  Linear layer({.in_features = 2, .out_features = 2});
  OptimizerOptions options;
  options.own["weight"] = {.lr_factor = 0};
  const Error error = thrown_by([&] { Optimizer optimizer(layer.parameters(), options); });
  EXPECT_EQ(error.code(), Code::kUsage);
  EXPECT_THAT(error.what(), HasSubstr("call the model's name_tree()"));
}

TEST(TrainingStep, SettingsOfAnUnknownParameter_AreRefusedByName) {
  test::TinySequence model({.num_blocks = 2});
  OptimizerOptions options;
  options.own["blocks.1.norm.wieght"] = {.lr_factor = 0};
  const Error error = thrown_by([&] { parallelize(model, model.sequence(), {}, {}, options); });
  EXPECT_EQ(error.code(), Code::kUsage);
  EXPECT_THAT(error.what(), HasSubstr("'blocks.1.norm.wieght'"));
  EXPECT_THAT(error.what(), HasSubstr("did you mean 'blocks.1.norm.weight'"));
  const std::string own = thrown_by([&] { Optimizer(model.parameters(), options); }).what();
  EXPECT_THAT(own, HasSubstr("did you mean 'blocks.1.norm.weight'"));
  EXPECT_THAT(own, HasSubstr("also needs the parameters of the model"));
  const std::string zero1 =
      thrown_by([&] { Zero1Optimizer(model.parameters(), Axis(), options); }).what();
  EXPECT_THAT(zero1, HasSubstr("did you mean 'blocks.1.norm.weight'"));
}

TEST(TrainingStep, SettingsOfAFrozenParameterOrAnotherStage_AreKnown) {
  for (const DataSharding sharding : {DataSharding::kNone, DataSharding::kZero1}) {
    test::TinySequence model({.num_blocks = 2});
    const Parameters all = model.parameters();
    OptimizerOptions options;
    options.own[all.front()->name()] = {.lr_factor = 0};
    options.own[all.back()->name()] = {.lr_factor = 0};
    all.front()->freeze(at::kFloat);
    const ParallelConfig config{.sharding = sharding};
    EXPECT_EQ(parallelize(model, model.sequence(), {}, config, options).optimizer->states().size(),
              all.size() - 1);
    const Parameters stage(all.begin(), all.begin() + 3);
    EXPECT_EQ(Optimizer(stage, options, all).states().size(), 2U);
    EXPECT_EQ(thrown_by([&] { Optimizer(stage, options); }).code(), Code::kUsage);
  }
}

TEST(TrainingStep, ConfigOfOtherSizesThanTheAxes_IsRefused) {
  test::on_world(2, [](World& world) {
    const Mesh mesh = Mesh::build(world, {{"pp", 1}, {"dp", 2}, {"tp", 1}});
    const ParallelAxes axes{.pp = mesh["pp"], .dp = mesh["dp"], .tp = mesh["tp"]};
    test::TinySequence model({.num_blocks = 2});
    const ParallelConfig config{.tp = 2, .plan = test::TinySequence::plan(Replicate{})};
    const Error error = thrown_by([&] { parallelize(model, model.sequence(), axes, config); });
    EXPECT_EQ(error.code(), Code::kUsage);
    EXPECT_THAT(error.what(), HasSubstr("pp=1, dp=1 and tp=2, and the axes have 1, 2 and 1 ranks"));
  });
}

TEST(TrainingStep, ParameterOutsideTheSequence_IsRefusedUnlessItIsFrozen) {
  for (const bool is_frozen : {false, true}) {
    test::TinySequence model({.num_blocks = 2});
    std::vector<Layer*> sequence = model.sequence();
    Layer* left_out = sequence[1];
    sequence.erase(sequence.begin() + 1);
    if (is_frozen) {
      for (const auto& p : left_out->parameters()) p->freeze(at::kFloat);
      EXPECT_EQ(parallelize(model, sequence, {}, {}).optimizer->num_steps(), 0);
    } else {
      const Error error = thrown_by([&] { parallelize(model, sequence, {}, {}); });
      EXPECT_EQ(error.code(), Code::kUsage);
      EXPECT_THAT(error.what(), HasSubstr("blocks.0.norm.weight belongs to no layer of the "));
    }
  }
}

}  // namespace
}  // namespace cleave::training_step_test
