#include "cleave/parallel/fsdp.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/mesh/mesh.h"
#include "cleave/model/model.h"
#include "cleave/nn/cross_entropy.h"
#include "cleave/nn/linear.h"
#include "cleave/nn/norm.h"
#include "cleave/parallel/gradients.h"
#include "cleave/parallel/recompute.h"
#include "cleave/parallel/zero1.h"
#include "tests/support/golden.h"
#include "tests/support/ranks.h"
#include "tests/support/thrown.h"

// Oracle: the whole model on one rank in float64, with plain autograd and the plain optimizer.
namespace cleave::fsdp_test {
namespace {

using test::largest_difference;

/// A Llama whose numbers of heads and words no layout divides; tied or not.
Json config(bool tied) {
  return Json::parse(str(R"({"model_type": "llama", "vocab_size": 23, "hidden_size": 12,
      "intermediate_size": 17, "num_hidden_layers": 2, "num_attention_heads": 3,
      "num_key_value_heads": 1, "head_dim": 4, "max_position_embeddings": 32, "rms_norm_eps": 1e-5,
      "rope_theta": 10000, "tie_word_embeddings": )",
                         tied ? "true}" : "false}"),
                     "config.json");
}

struct Case {
  int dp = 1, replicas = 1, tp = 1;
  bool tied = false, sequence_parallel = false, zero1 = false, recomputes = false;
  bool before_memory = true;  // shard before materialize, or after
};

struct Outcome {
  std::vector<double> losses, norms;
  std::map<std::string, Tensor> weights;  // whole, after the last step
};

Tensor all_ids() {
  return test::ids({6, 4, 5}, 23, 11);  // 3 steps' worth of 2 micro-batches
}

bool is_block(const Layer& layer) {
  return layer.path().find(".layers.") != std::string::npos;
}

/// Shards each block as one group, and the rest as another.
void shard_all(Model& model, const Axis& dp, const Axis& replicas) {
  std::vector<Layer*> blocks;
  for (Layer* layer : model.sequence()) {
    if (is_block(*layer)) blocks.push_back(layer);
  }
  fully_shard(blocks, dp, {.precision = {at::kDouble, at::kDouble}, .replicate = replicas});
  fully_shard(model, dp,
              {.precision = {at::kDouble, at::kDouble},
               .reshard_after_forward = false,
               .replicate = replicas});
}

/// The leaves, which a checkpoint writes, gathered over dp to the local parts.
std::map<std::string, Tensor> joined(const Parameters& parameters, const Axis& dp) {
  std::map<std::string, Tensor> out;
  for (const auto& p : parameters) {
    const Tensor count =
        dp.all_gather(at::tensor({p->leaf().numel()}, at::kLong), 0,
                      std::vector<int64_t>(static_cast<size_t>(dp.size()), 1), "t");
    std::vector<int64_t> widths;
    for (int64_t r = 0; r < dp.size(); ++r) widths.push_back(count[r].item<int64_t>());
    out[p->name()] =
        dp.all_gather(p->leaf().detach().flatten(), 0, widths, "t").view(p->local_shape());
  }
  return out;
}

/// Three steps of two micro-batches; sequences are divided over shards and replicas.
Outcome train(const Case& c, const Axis& replicas, const Axis& dp, const Axis& tp,
              const Axis& all) {
  auto model = make_model(config(c.tied));
  parallelize_module(*model, tp, model->plan(c.sequence_parallel));
  if (c.recomputes) {
    for (Layer* layer : model->sequence()) {
      if (is_block(*layer)) recompute(*layer);
    }
  }
  const Parameters parameters = model->parameters();
  const MaterializeOptions start{.seed = 5, .dtype = at::kDouble};
  if (!c.before_memory) materialize(*model, start);
  const OptimizerOptions options{.eps = 1e-6, .weight_decay = 0.1};
  std::unique_ptr<Zero1Optimizer> zero1;
  std::unique_ptr<Optimizer> plain;
  if (c.zero1) {
    // Buckets of a few parameters, so that there are several.
    zero1 = std::make_unique<Zero1Optimizer>(
        parameters, dp, options,
        Zero1Options{.precision = {at::kDouble, at::kDouble}, .bucket_bytes = 2048});
    sum_during_backward(zero1->gradients(), model->sequence());
  } else {
    shard_all(*model, dp, replicas);
    plain = std::make_unique<Optimizer>(parameters, options);
  }
  Optimizer& optimizer = zero1 ? *zero1 : *plain;
  materialize(*model, start);
  if (zero1) zero1->gather_weights();
  Outcome run;
  for (int64_t step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    if (zero1) zero1->gradients()->begin(2);
    double sum = 0;
    for (int64_t micro = 0; micro < 2; ++micro) {
      const Tensor rows = all_ids()[2 * step + micro];
      const int64_t mine = dp.rank() * replicas.size() + replicas.rank();
      const int64_t per = rows.size(0) / (dp.size() * replicas.size());
      const Tensor ids = rows.narrow(0, per * mine, per);
      const DTensor logits = (*model)(DTensor(ids, tp, Replicate{}), Context());
      const DTensor loss =
          cross_entropy(logits, next_token_labels(ids), {.valid_tokens = 2 * 4 * 4});
      loss.local().backward();
      sum += loss.local().item<double>();
    }
    if (zero1) zero1->reduce_gradients();
    run.norms.push_back(gradient_norm(parameters, all).value);
    optimizer.step(0.01);
    run.losses.push_back(
        replicas.all_reduce(dp.all_reduce(at::scalar_tensor(sum, at::kDouble), "t"), "t")
            .item<double>());
  }
  run.weights = joined(parameters, dp);
  return run;
}

void expect_equals_one_rank(const Case& c) {
  const Case one{.tied = c.tied};
  const Outcome want = train(one, {}, {}, {}, {});
  run_ranks(c.dp * c.replicas * c.tp, [&](World& world) {
    const Mesh mesh = Mesh::build(world, {{"hsdp", c.replicas}, {"dp", c.dp}, {"tp", c.tp}});
    std::vector<int> ranks;  // of one replica
    for (int r = 0; r < c.dp * c.tp; ++r) ranks.push_back(mesh["hsdp"].rank() * c.dp * c.tp + r);
    const Axis all(world.group(ranks, "shards"));
    const Outcome got = train(c, mesh["hsdp"], mesh["dp"], mesh["tp"], all);
    for (size_t step = 0; step < 3; ++step) {
      EXPECT_NEAR(got.losses[step], want.losses[step], 1e-11);
      EXPECT_NEAR(got.norms[step], want.norms[step], 1e-11);
    }
    auto model = make_model(config(c.tied));
    parallelize_module(*model, mesh["tp"], model->plan());
    for (const auto& p : model->parameters()) {
      EXPECT_LE(largest_difference(got.weights.at(p->name()),
                                   test::slice_of(*p, want.weights.at(p->name()))),
                1e-10)
          << p->name();
    }
  });
}

TEST(FullyShard, OneRank_IsPlainTraining) {
  // Checks the oracle of the other tests: with wraps and one rank it equals plain autograd.
  auto model = make_model(config(false));
  materialize(*model, {.seed = 5, .dtype = at::kDouble});
  const Tensor ids = all_ids()[0];
  const DTensor loss = cross_entropy((*model)(DTensor(ids, Axis(), Replicate{}), Context()),
                                     next_token_labels(ids), {.valid_tokens = 32});
  const Outcome sharded = train({}, {}, {}, {}, {});
  const Tensor second = all_ids()[1];
  const DTensor more = cross_entropy((*model)(DTensor(second, Axis(), Replicate{}), Context()),
                                     next_token_labels(second), {.valid_tokens = 32});
  EXPECT_NEAR(sharded.losses[0], loss.local().item<double>() + more.local().item<double>(), 1e-13);
}

// Oracle: 256 + 1 + 1 + 1, each of which a sum in bf16 rounds away.
TEST(FullyShard, OneRankInBf16_AddsTheGradientsOfMicroBatchesInFp32) {
  Linear layer({.in_features = 1, .out_features = 1, .bias = false});
  fully_shard(layer, Axis(), {.precision = {.param = at::kBFloat16}});
  materialize(layer, {.seed = 5});
  for (const double x : {256, 1, 1, 1}) {
    const DTensor input(at::full({1, 1}, x, at::kBFloat16), Axis(), Replicate{});
    layer(input, Context()).local().sum().backward();
  }
  EXPECT_EQ(layer.weight()->leaf().grad().item<double>(), 259);
}

TEST(FullyShard, OverTwoRanks_IsOneRank) {
  expect_equals_one_rank({.dp = 2});
  expect_equals_one_rank({.dp = 2, .tied = true});
  expect_equals_one_rank({.dp = 2, .before_memory = false});
}

TEST(FullyShard, OnTopOfUnevenTensorAndSequenceParallel_IsOneRank) {
  expect_equals_one_rank({.dp = 2, .tp = 2, .tied = true});
  expect_equals_one_rank({.dp = 2, .tp = 2, .sequence_parallel = true});
  expect_equals_one_rank({.dp = 2, .tp = 3, .tied = true, .sequence_parallel = true});
}

TEST(FullyShard, WithRecompute_IsOneRank) {
  expect_equals_one_rank(
      {.dp = 2, .tp = 2, .tied = true, .sequence_parallel = true, .recomputes = true});
}

TEST(FullyShard, HybridShards_AreOneRank) {
  expect_equals_one_rank({.dp = 1, .replicas = 2});
  expect_equals_one_rank({.dp = 2, .replicas = 2, .tied = true});
}

TEST(Zero1, OverTwoRanks_IsOneRank) {
  expect_equals_one_rank({.dp = 2, .zero1 = true});
  expect_equals_one_rank({.dp = 2, .tied = true, .zero1 = true, .before_memory = false});
}

TEST(Zero1, OnTopOfUnevenTensorAndSequenceParallel_IsOneRank) {
  expect_equals_one_rank(
      {.dp = 2, .tp = 3, .tied = true, .sequence_parallel = true, .zero1 = true});
}

TEST(FullyShard, MemoryOfLeavesAndMoments_FallsAsOneOverRanks) {
  test::on_ranks(4, [](const Axis& dp) {
    auto model = make_model(config(true));
    shard_all(*model, dp, {});
    materialize(*model);
    int64_t held = 0;
    int64_t whole = 0;
    for (const auto& p : model->parameters()) {
      held += p->leaf().numel();
      whole += p->numel();
      EXPECT_FALSE(p->is_readable());
    }
    // Shards are exact: at most one element more than a quarter in each of 4 groups.
    EXPECT_LE(held, whole / 4 + 4);
  });
}

/// Loss and gradient norm of a step that trains only one projection of the second block.
std::pair<double, double> frozen_pass(const Axis& dp, bool recomputes) {
  auto model = make_model(config(false));
  model->name_tree();
  const Parameters parameters = model->parameters();
  for (const auto& p : parameters) {
    if (p->name() != "model.layers.1.self_attn.v_proj.weight") p->freeze(at::kDouble);
  }
  for (Layer* layer : model->sequence()) {
    if (recomputes && is_block(*layer)) recompute(*layer);
  }
  if (dp.size() > 1) shard_all(*model, dp, {});
  materialize(*model, {.seed = 5, .dtype = at::kDouble});
  const Tensor ids = all_ids()[0];
  const DTensor loss = cross_entropy((*model)(DTensor(ids, Axis(), Replicate{}), Context()),
                                     next_token_labels(ids), {});
  loss.local().backward();
  for (const auto& p : parameters) {
    EXPECT_TRUE(dp.size() == 1 || !p->is_readable()) << p->name() << " is still gathered";
  }
  return {loss.local().item<double>(), clip_grad_norm(parameters, 1e9).value};
}

TEST(FullyShard, FrozenWeights_AreFreedAfterBackward) {
  test::on_ranks(2, [](const Axis& dp) {
    const auto [loss, norm] = frozen_pass(Axis(), false);
    for (const bool recomputes : {false, true}) {
      const auto [sharded_loss, sharded_norm] = frozen_pass(dp, recomputes);
      EXPECT_NEAR(sharded_loss, loss, 1e-13);
      EXPECT_NEAR(sharded_norm, 2 * norm, 1e-12);  // the sum of two ranks' equal gradients
    }
  });
}

/// x, or x times a weight, 3 in each place.
class Skipped : public Layer {
 public:
  Skipped() { add("scale", scale_); }
  bool is_skipped = false;

 protected:
  DTensor forward(const DTensor& x, const Context& /*context*/) override {
    return is_skipped ? x : x.with(x.local() * scale_->use());
  }

 private:
  std::shared_ptr<Parameter> scale_ =
      std::make_shared<Parameter>(std::vector<int64_t>{4}, Init::constant(3));
};

// As the skipped layers of LayerDrop. Oracle: the product rule.
TEST(FullyShard, LayerThatAStepSkips_HasAGradientOfZeros) {
  test::on_ranks(2, [](const Axis& dp) {
    Skipped first, second;
    for (Skipped* layer : {&first, &second}) {
      fully_shard(*layer, dp);
      materialize(*layer);
    }
    second.is_skipped = true;
    const Parameters parameters{first.parameters()[0], second.parameters()[0]};
    GradientSync gradients(parameters, dp, {.sharding = DataSharding::kFsdp});
    gradients.begin(1);
    const DTensor y = first(DTensor(at::full({4}, 5.0F), Axis(), Replicate{}), Context());
    second(y, Context()).local().sum().backward();
    EXPECT_FALSE(parameters[1]->is_readable()) << "is still gathered";
    gradients.complete();
    EXPECT_TRUE(at::equal(parameters[0]->leaf().grad(), at::full({2}, 10.0F)));  // of two ranks
    EXPECT_TRUE(at::equal(parameters[1]->leaf().grad(), at::zeros({2})));
    EXPECT_DOUBLE_EQ(clip_grad_norm(parameters, 1e9).value, 20);
  });
}

// 257 is no number of bf16. Oracle: the weight's own values, as a layer that is not sharded reads.
TEST(FullyShard, FrozenWeightOfAnotherType_IsReadInItsOwn) {
  class Table : public Layer {
   public:
    Table() {
      add("ids", ids_);
      add("scale", scale_);
      add("trained", trained_);
      ids_->freeze(at::kLong);
      scale_->freeze(at::kFloat);
    }

   protected:
    DTensor forward(const DTensor& x, const Context& /*context*/) override {
      EXPECT_EQ(trained_->use().scalar_type(), at::kBFloat16);
      EXPECT_EQ(ids_->use().scalar_type(), at::kLong);
      EXPECT_EQ(scale_->use().scalar_type(), at::kFloat);
      const Tensor frozen = ids_->use() * scale_->use();
      return x.with(x.local() * frozen + trained_->use());
    }

   private:
    std::shared_ptr<Parameter> ids_ = made(), scale_ = made(), trained_ = made();
    static std::shared_ptr<Parameter> made() {
      return std::make_shared<Parameter>(std::vector<int64_t>{3}, Init::constant(0));
    }
  };
  test::on_ranks(2, [](const Axis& dp) {
    Table table;
    fully_shard(table, dp, {.precision = {.param = at::kBFloat16}});
    materialize(table);
    const Parameters parameters = table.parameters();
    const auto fill = [&](size_t i, const Tensor& whole) {
      parameters[i]->set_leaf(parameters[i]->part_of(whole));
    };
    fill(0, at::tensor({257, 258, 259}, at::kLong));
    fill(1, at::full({3}, 1 + 0x1p-12, at::kFloat));
    const Tensor y = table(DTensor(at::ones({3}), Axis(), Replicate{}), Context()).local();
    EXPECT_TRUE(at::equal(y, at::tensor({257.F, 258.F, 259.F}) * (1 + 0x1p-12)));
    y.sum().backward();
    EXPECT_TRUE(at::equal(parameters[2]->leaf().grad(), at::full_like(parameters[2]->leaf(), 2)));
  });
}

// Oracle: the mean of what each rank's input gives.
TEST(FullyShard, HybridShards_AreAveragedOverAllTheirRanks) {
  test::on_world(4, [](World& world) {
    const Mesh mesh = Mesh::build(world, {{"hsdp", 2}, {"dp", 2}});
    const Axis all = mesh.flatten(world, {"hsdp", "dp"}, "all");
    Linear layer({.in_features = 4, .out_features = 1, .bias = false});
    fully_shard(layer, mesh["dp"], {.replicate = mesh["hsdp"]});
    materialize(layer);
    const auto input_of = [](int rank) {
      return test::numbers({1, 4}, 10 + static_cast<uint64_t>(rank)).to(at::kFloat);
    };
    layer(DTensor(input_of(all.rank()), Axis(), Replicate{}), Context()).local().sum().backward();
    const Parameters parameters = layer.parameters();
    average_gradients(parameters, Axis(), all);
    Tensor mean = at::zeros({1, 4});
    for (int rank = 0; rank < 4; ++rank) mean += input_of(rank) / 4;
    EXPECT_LE(largest_difference(parameters[0]->leaf().grad(), parameters[0]->part_of(mean)), 1e-6);

    Linear alone({.in_features = 4, .out_features = 1, .bias = false});
    fully_shard(alone, mesh["dp"]);
    materialize(alone);
    alone(DTensor(input_of(0), Axis(), Replicate{}), Context()).local().sum().backward();
    const Error error = test::thrown_by([&] { sum_gradients(alone.parameters(), all); });
    EXPECT_EQ(error.code(), Code::kUsage);
    EXPECT_NE(std::string(error.what()).find("would add different shards"), std::string::npos);
  });
}

// The leaf is whole, so it is no lack of memory.
TEST(FullyShard, WeightReadOutsideItsCall_IsRefusedOnOneRankToo) {
  for (const int ranks : {1, 2}) {
    test::on_ranks(ranks, [](const Axis& dp) {
      Linear layer({.in_features = 4, .out_features = 3});
      fully_shard(layer, dp);
      materialize(layer);
      (void)layer(DTensor(at::ones({1, 4}), Axis(), Replicate{}), Context());
      const Error error = test::thrown_by([&] { (void)layer.weight()->use(); });
      EXPECT_EQ(error.code(), Code::kUsage);
      EXPECT_NE(std::string(error.what()).find("outside the call that gathers it"),
                std::string::npos)
          << error.what();
    });
  }
}

/// Gives away what it computes before its last layer.
class Leaky : public Layer {
 public:
  Leaky() {
    add("first", first_);
    add("second", second_);
  }
  Tensor inner;

 protected:
  DTensor forward(const DTensor& x, const Context& context) override {
    const DTensor y = second_(first_(x, context), context);
    inner = y.local();
    return second_(y, context);
  }

 private:
  RmsNorm first_{4, 1e-5}, second_{4, 1e-5};
};

// As in PyTorch, the weights are gathered again when backward reaches the layer's output. Without
// this check, kernels would read freed memory.
TEST(FullyShard, LossThatReadsNoOutputOfTheLayer_IsRefused) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    test::on_ranks(2, [type](const Axis& dp) {
      Leaky layer;
      fully_shard(layer, dp, {.precision = {.param = type}});
      materialize(layer);
      const Tensor y =
          layer(DTensor(at::ones({1, 4}, type), Axis(), Replicate{}), Context()).local();
      const Error error = test::thrown_by([&] { layer.inner.sum().backward({}, true); });
      EXPECT_EQ(error.code(), Code::kUsage);
      EXPECT_NE(std::string(error.what()).find("that FSDP has freed"), std::string::npos)
          << error.what();
      (y.sum() + layer.inner.sum()).backward();
    });
  }
}

TEST(FullyShard, WrongOrder_IsRefused) {
  auto model = make_model(config(false));
  Layer& block = *model->sequence()[1];
  fully_shard(block, Axis());
  EXPECT_EQ(test::thrown_by([&] { recompute(block); }).code(), Code::kUsage);
  EXPECT_EQ(test::thrown_by([&] { fully_shard(block, Axis()); }).code(), Code::kUsage);
  recompute(*model->sequence()[2]);
  const Error inside = test::thrown_by([&] { fully_shard(*model, Axis()); });
  EXPECT_EQ(inside.code(), Code::kUsage);
  EXPECT_TRUE(std::string(inside.what()).starts_with("model.layers.1 recomputes inside"))
      << inside.what();
}

}  // namespace
}  // namespace cleave::fsdp_test
