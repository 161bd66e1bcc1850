#include "cleave/parallel/lora.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/mesh/mesh.h"
#include "cleave/model/model.h"
#include "cleave/nn/cross_entropy.h"
#include "cleave/nn/dropout.h"
#include "cleave/nn/embedding.h"
#include "cleave/nn/linear.h"
#include "cleave/nn/quantized_leaf.h"
#include "cleave/optim/optimizer.h"
#include "cleave/parallel/gradients.h"
#include "cleave/parallel/parallelize.h"
#include "cleave/parallel/zero1.h"
#include "tests/support/golden.h"
#include "tests/support/quantized_values.h"
#include "tests/support/ranks.h"
#include "tests/support/thrown.h"

namespace cleave::lora_test {
namespace {

/// One block: up and down projection.
class Block : public Layer {
 public:
  Block()
      : up_({.in_features = 6, .out_features = 10, .default_style = DefaultStyle::kColwise}),
        down_({.in_features = 10, .out_features = 6, .default_style = DefaultStyle::kRowwise}) {
    add("up", up_);
    add("down", down_);
  }

 protected:
  DTensor forward(const DTensor& x, const Context& context) override {
    return down_(up_(x, context), context);
  }

 private:
  Linear up_, down_;
};

/// Embedding, two blocks and a tied head.
class Tiny : public Layer {
 public:
  Tiny()
      : embed_({.num_embeddings = 8, .embedding_dim = 6, .init = Init::normal(1)}),
        head_({.in_features = 6, .out_features = 8, .bias = false}) {
    head_.tie_weight(embed_.weight());
    add("embed", embed_);
    add("first", first_);
    add("second", second_);
    add("head", head_);
  }

  std::vector<Layer*> sequence() { return {&embed_, &first_, &second_, &head_}; }

 protected:
  DTensor forward(const DTensor& x, const Context& context) override {
    return head_(second_(first_(embed_(x, context), context), context), context);
  }

 private:
  Embedding embed_;
  Block first_, second_;
  Linear head_;
};

std::string message_of(const LoraOptions& options) {
  Tiny model;
  try {
    attach_lora(model, model.sequence(), options, at::kFloat);
  } catch (const Error& error) {
    return str(static_cast<int>(error.code()), ' ', error.what());
  }
  return "";
}

std::vector<std::string> trained_names(const LoraOptions& options) {
  Tiny model;
  attach_lora(model, model.sequence(), options, at::kFloat);
  std::vector<std::string> names;
  for (const auto& p : trained_of(model.parameters())) names.push_back(p->name());
  return names;
}

// Oracle: the closed form in fp64, and its gradients by torch on plain tensors.
TEST(Lora, BranchOfALinear_GivesTheClosedFormAndItsGradients) {
  const double scale = 1.5;
  for (const bool is_transposed : {false, true}) {
    Linear layer({.in_features = 6, .out_features = 10, .transposed = is_transposed});
    layer.name_tree();
    for (const auto& p : layer.parameters()) p->freeze(at::kDouble);
    layer.attach_lora({.rank = 3, .scale = scale});
    std::vector<Tensor> values;
    for (const auto& p : layer.parameters()) {
      const Tensor value =
          test::golden_values(1, "lora test " + p->name(), p->shape(), 2, 0).to(at::kDouble);
      p->set_leaf(value);
      values.push_back(value.clone().requires_grad_());
    }
    ASSERT_EQ(values.size(), 4U);  // weight, bias, A, B
    const Tensor x = test::golden_values(1, "lora test x", {4, 6}, 2, 0).to(at::kDouble);
    const Tensor own_x = x.clone().requires_grad_();
    const Tensor plain_x = x.clone().requires_grad_();
    const Tensor weight = is_transposed ? values[0].t() : values[0];
    const Tensor want = plain_x.matmul(weight.t()) + values[1] +
                        scale * plain_x.matmul(values[2].t()).matmul(values[3].t());
    const Tensor got = layer(DTensor(own_x, Axis(), Replicate{}), Context()).local();
    EXPECT_LE(test::largest_difference(got, want), 1e-12);
    const Tensor direction = test::golden_values(1, "lora test dy", {4, 10}, 2, 0).to(at::kDouble);
    (got * direction).sum().backward();
    (want * direction).sum().backward();
    EXPECT_LE(test::largest_difference(own_x.grad(), plain_x.grad()), 1e-12);
    const Parameters parameters = layer.parameters();
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_FALSE(parameters[i]->leaf().requires_grad());
      EXPECT_FALSE(parameters[i]->leaf().grad().defined());
    }
    for (size_t i = 2; i < 4; ++i) {
      EXPECT_LE(test::largest_difference(parameters[i]->leaf().grad(), values[i].grad()), 1e-12);
    }
  }
}

// LoRA-FA trains B alone; the input of a model's first block has no gradient. Oracle: the closed
// form.
TEST(Lora, BranchWhoseAIsNotTrained_TrainsBOnAnInputWithoutAGradient) {
  Linear layer({.in_features = 6, .out_features = 10, .bias = false});
  layer.name_tree();
  layer.weight()->freeze(at::kDouble);
  layer.attach_lora({.rank = 3, .scale = 1.5});
  materialize(layer, {.seed = 3, .dtype = at::kDouble});
  const Parameters all = layer.parameters();  // weight, A, B
  all[1]->leaf().set_requires_grad(false);
  const Tensor x = test::numbers({4, 6}, 1), direction = test::numbers({4, 10}, 2);
  const Tensor y = layer(DTensor(x, Axis(), Replicate{}), Context()).local();
  ASSERT_TRUE(y.requires_grad());
  (y * direction).sum().backward();
  const Tensor want = 1.5 * direction.t().matmul(x.matmul(all[1]->leaf().t()));
  EXPECT_LE(test::largest_difference(all[2]->leaf().grad(), want), 1e-13);
  EXPECT_FALSE(all[1]->leaf().grad().defined());
}

/// A linear layer in fp64 with magnitudes, without memory.
class LinearWithMagnitudes : public Linear {
 public:
  LinearWithMagnitudes() : Linear({.in_features = 6, .out_features = 10, .bias = false}) {
    name_tree();
    weight()->freeze(at::kDouble);
    attach_lora({.rank = 3, .scale = 1.5, .has_magnitudes = true});
  }
};

// Oracle: the closed form in fp64.
TEST(Lora, BaseThatChangesAfterAForward_GetsTheNormsOfItsNewRows) {
  LinearWithMagnitudes layer;
  const auto value = [](const std::string& name, const std::vector<int64_t>& shape) {
    return test::golden_values(1, "lora test " + name, shape, 2, 0).to(at::kDouble);
  };
  for (const auto& p : layer.parameters()) p->set_leaf(value(p->name(), p->shape()));
  const Parameters all = layer.parameters();  // weight, A, B, magnitudes
  ASSERT_EQ(all.size(), 4U);
  const Tensor x = value("x", {4, 6});
  const auto expect_closed_form = [&](const std::string& what) {
    const Tensor sum = all[0]->leaf() + 1.5 * all[2]->leaf().matmul(all[1]->leaf());
    const Tensor factors = all[3]->leaf() / sum.square().sum(1).sqrt();
    const Tensor want = x.matmul((sum * factors.unsqueeze(1)).t());
    const Tensor got = layer(DTensor(x, Axis(), Replicate{}), Context()).local();
    EXPECT_LE(test::largest_difference(got, want), 1e-12) << what;
  };
  expect_closed_form("at first");
  all[0]->leaf().detach().mul_(3);
  expect_closed_form("changed in place");
  all[0]->set_leaf(value("another weight", {10, 6}));
  expect_closed_form("another leaf");
  // Those that nobody set come with a branch of zeros.
  all[3]->set_leaf(at::ones(all[3]->shape(), at::kDouble));
  all[0]->set_leaf(value("a third weight", {10, 6}));
  expect_closed_form("trained magnitudes that are 1");
}

// Oracle: W x, which a branch of zeros does not change.
TEST(Lora, MagnitudesThatNobodySet_AreRefused) {
  LinearWithMagnitudes layer;
  materialize(layer, {.seed = 3, .dtype = at::kDouble});
  const DTensor x(test::numbers({4, 6}, 1), Axis(), Replicate{});
  const Error error = test::thrown_by([&] { (void)layer(x, Context()); });
  EXPECT_EQ(error.code(), Code::kUsage);
  EXPECT_NE(std::string(error.what()).find("call start_magnitudes"), std::string::npos)
      << error.what();
  start_magnitudes(layer, at::kDouble);
  const Tensor want = x.local().matmul(layer.weight()->leaf().t());
  EXPECT_LE(test::largest_difference(layer(x, Context()).local(), want), 1e-14);
}

// Oracle: the closed form with the mask of that layer's random stream.
TEST(Lora, Dropout_IsOnTheInputOfTheBranchWhileTraining) {
  Linear layer({.in_features = 6, .out_features = 10});
  layer.name_tree();
  layer.attach_lora({.rank = 3, .scale = 1.5, .dropout = 0.5});
  std::vector<Tensor> values;
  for (const auto& p : layer.parameters()) {
    p->set_leaf(test::golden_values(1, "lora test " + p->name(), p->shape(), 2, 0).to(at::kDouble));
    values.push_back(p->leaf().detach());
  }
  const DTensor x(test::golden_values(1, "lora test x", {2, 4, 6}, 2, 0).to(at::kDouble), Axis(),
                  Replicate{});
  Context context;
  context.seed = 5;
  context.step = 3;
  for (const bool trains : {false, true}) {
    context.training = trains;
    Tensor kept = x.local();
    if (trains) kept = kept * dropout_mask(x, 0.5, layer.path() + ".lora_dropout", context);
    EXPECT_EQ(kept.eq(0).any().item<bool>(), trains);
    const Tensor want = x.local().matmul(values[0].t()) + values[1] +
                        1.5 * kept.matmul(values[2].t()).matmul(values[3].t());
    EXPECT_LE(test::largest_difference(layer(x, context).local(), want), 1e-12);
  }
}

// Oracle: PEFT's first values: A uniform in 1/sqrt(in), whose variance is 1/(3 in), and B zero.
TEST(Lora, FirstValues_AreThoseOfPeft) {
  Linear layer({.in_features = 400, .out_features = 300});
  layer.name_tree();
  layer.attach_lora({.rank = 50});
  materialize(layer);
  const Tensor a = layer.parameters()[2]->leaf();
  EXPECT_LE(a.abs().max().item<double>(), 1 / std::sqrt(400.0));
  // The variance of 20,000 uniform values has a relative deviation of sqrt(0.8 / 20000) = 0.6 %.
  EXPECT_NEAR(a.var().item<double>() * 3 * 400, 1, 0.04);
  EXPECT_EQ(layer.parameters()[3]->leaf().abs().max().item<double>(), 0);
}

TEST(Lora, Targets_AreEndsOfPathsOrAllLinearLayersButTheHead) {
  EXPECT_EQ(trained_names({.rank = 2, .targets = {"first.up"}}),
            (std::vector<std::string>{"first.up.lora_A.weight", "first.up.lora_B.weight"}));
  EXPECT_EQ(trained_names({.rank = 2, .targets = {"up"}}).size(), 4U);
  EXPECT_EQ(trained_names({.rank = 2}).size(), 8U);
  EXPECT_EQ(trained_names({.rank = 2, .targets = {"up", "down", "all-linear"}}).size(), 8U);
}

TEST(Lora, WrongTargetsOrRank_AreRefusedByName) {
  EXPECT_EQ(message_of({.rank = 2, .targets = {"q_proj"}}),
            "2 the LoRA target 'q_proj' is not a linear layer of the model; it has up, down, head, "
            "and all-linear stands for all but the head and the routers of experts");
  EXPECT_EQ(message_of({.rank = 2, .targets = {"p"}}).substr(0, 23), "2 the LoRA target 'p' i");
  const std::string tied = message_of({.rank = 2, .targets = {"head"}});
  EXPECT_NE(tied.find("embed.weight, which another layer uses too"), std::string::npos) << tied;
  const std::string rank = message_of({.rank = 7});
  EXPECT_NE(rank.find("LoRA rank 7 does not fit a matrix of 10 x 6; choose a rank from 1 to 6"),
            std::string::npos)
      << rank;
  EXPECT_EQ(rank.front(), '3');
}

// Their matrices would not be sharded, and gradients of whole ones not summed over tp.
TEST(Lora, AfterTheModelIsParallelized_AreRefused) {
  test::on_ranks(2, [](const Axis& axis) {
    Tiny model;
    parallelize_module(model, axis, {{"*.up", Colwise{}}, {"*.down", Rowwise{}}});
    const Error error =
        test::thrown_by([&] { attach_lora(model, model.sequence(), {.rank = 2}, at::kFloat); });
    EXPECT_EQ(error.code(), Code::kUsage);
    EXPECT_NE(std::string(error.what()).find("before the model is parallelized"),
              std::string::npos);
  });
}

TEST(Lora, DropoutOfExperts_IsRefused) {
  const Json config = Json::parse_file(test::golden_folder("mixtral") + "/config.json");
  const auto attach = [&](const std::string& target) {
    const auto model = make_model(config);
    attach_lora(*model, model->sequence(), {.rank = 2, .dropout = 0.1, .targets = {target}},
                at::kFloat);
  };
  attach("q_proj");
  for (const char* target : {"all-linear", "gate", "w1"}) {
    try {
      attach(target);
      FAIL() << target;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kUsage) << target;
      EXPECT_NE(std::string(error.what()).find("leave out --lora-dropout"), std::string::npos);
    }
  }
}

TEST(Lora, Scale_IsAlphaOverTheRankOrItsRoot) {
  const LoraOptions plain{.rank = 16, .alpha = 32};
  EXPECT_DOUBLE_EQ(plain.scale(), 2);
  const LoraOptions stabilized{.rank = 16, .alpha = 32, .is_rank_stabilized = true};
  EXPECT_DOUBLE_EQ(stabilized.scale(), 8);
}

// bf16: frozen weights are bf16 without a copy; adapters have fp32 leaves and bf16 copies.
TEST(Lora, ParallelizedModel_HasNoStateForFrozenWeights) {
  Tiny model;
  const ParallelConfig config{.compute_type = at::kBFloat16, .lora = LoraOptions{.rank = 2}};
  Parallelized p = parallelize(model, model.sequence(), {}, config);
  materialize(model);
  p.gradients->refresh_weights();
  EXPECT_EQ(p.gradients->parameters().size(), 8U);
  EXPECT_EQ(p.optimizer->states().size(), 8U);
  for (const auto& parameter : p.parameters()) {
    EXPECT_EQ(parameter->use().scalar_type(), at::kBFloat16);
    EXPECT_EQ(parameter->use().is_same(parameter->leaf()), parameter->is_frozen());
    EXPECT_EQ(parameter->is_frozen(), !parameter->is_adapter());
  }
}

// Zero gradients would let an optimizer over all parameters decay the frozen weights.
TEST(Lora, SumsOverAllParameters_LeaveFrozenOnesWithoutGradientAndUnchanged) {
  run_ranks(2, [](World& world) {
    const Axis dp = Mesh::build(world, {{"dp", 2}})["dp"];
    Tiny model;
    attach_lora(model, model.sequence(), {.rank = 2}, at::kFloat);
    model.name_tree();
    materialize(model);
    const Parameters all = model.parameters();
    std::map<std::string, Tensor> before;
    for (const auto& p : all) before[p->name()] = p->leaf().detach().clone();
    Optimizer optimizer(all, {.weight_decay = 0.5, .decay_on = OptimizerOptions::DecayOn::kAll});
    const Tensor ids = at::tensor({1, 2, 3}, at::kLong).view({1, 3});
    cross_entropy(model(DTensor(ids, Axis(), Replicate{}), Context()), next_token_labels(ids), {})
        .local()
        .backward();
    finish_gradients(all, Axis());
    sum_gradients(all, dp);
    average_gradients(all, Axis(), dp);
    for (const auto& p : all) EXPECT_EQ(p->leaf().grad().defined(), !p->is_frozen()) << p->name();
    optimizer.step(0.1);
    for (const auto& p : all) {
      EXPECT_EQ(at::equal(p->leaf(), before[p->name()]), p->is_frozen()) << p->name();
    }
  });
}

// Two steps: a gradient that is left from the first would be refused in the second.
TEST(Lora, GradientSyncOverAllParameters_LeavesFrozenOnesOut) {
  for (const bool shards : {false, true}) {
    run_ranks(2, [&](World& world) {
      const Axis dp = Mesh::build(world, {{"dp", 2}})["dp"];
      Tiny model;
      attach_lora(model, model.sequence(), {.rank = 2}, at::kFloat);
      model.name_tree();
      const Parameters all = model.parameters();
      const auto sync = std::make_shared<GradientSync>(
          all, dp,
          GradientSyncOptions{.sharding = shards ? DataSharding::kZero1 : DataSharding::kNone});
      materialize(model);
      sync->refresh_weights();
      std::map<std::string, Tensor> before;
      for (const auto& p : all) before[p->name()] = p->leaf().detach().clone();
      std::unique_ptr<Optimizer> optimizer = std::make_unique<Optimizer>(all, OptimizerOptions{});
      if (shards) optimizer = std::make_unique<Zero1Optimizer>(sync, OptimizerOptions{});
      const Tensor ids = at::tensor({1, 2, 3}, at::kLong).view({1, 3});
      for (int step = 0; step < 2; ++step) {
        sync->begin(0);
        cross_entropy(model(DTensor(ids, Axis(), Replicate{}), Context()), next_token_labels(ids),
                      {})
            .local()
            .backward();
        sync->complete();
        for (const auto& p : all) {
          EXPECT_EQ(p->leaf().grad().defined(), !p->is_frozen()) << p->name();
          EXPECT_EQ(p->is_flat(), shards && !p->is_frozen()) << p->name();
        }
        optimizer->step(0.1);
        optimizer->zero_grad();
      }
      for (const auto& p : all) {
        EXPECT_TRUE(!p->is_frozen() || at::equal(p->leaf(), before[p->name()])) << p->name();
      }
    });
  }
}

/// A golden model's config.json with other values.
Json config_of(const std::string& golden, const nlohmann::json& changes) {
  const Json own = Json::parse_file(test::golden_folder(golden) + "/config.json");
  auto json = nlohmann::json::parse(own.dump());
  json.update(changes);
  return Json::parse(json.dump(), golden);
}

/// A small model of a family, with adapters.
struct Adapted {
  Json config;
  LoraOptions lora;

  Adapted(const std::string& golden, const std::vector<std::string>& targets,
          const nlohmann::json& changes = nlohmann::json::object())
      : config(config_of(golden, changes)), lora{.rank = 3, .alpha = 4, .targets = targets} {}
  [[nodiscard]] std::unique_ptr<Model> model() const { return make_model(config); }
};

Tensor rounded(const Tensor& value, const Parameter::Quantization& to) {
  const bool is_int8 = to.form == QuantizedForm::kInt8;
  return (is_int8 ? test::rounded_to_int8 : test::rounded_to_nf4)(value, to.row_dim);
}

Tensor value_of(const Parameter& p) {
  const float center = p.shape().size() == 1 ? 1.0F : 0.0F;
  return test::golden_values(3, p.name(), p.shape(), 0.5F, center).to(at::kDouble);
}

Tensor loss_of(const DTensor& logits, const Tensor& ids) {
  return cross_entropy(logits, next_token_labels(ids), {}).local();
}

/// The gradients of the adapters by name, without any adapter code: those of the merged weights
/// W + s B A are dW, so those of A are s B^T dW and those of B are s dW A^T.
std::map<std::string, Tensor> gradients_of_merged(const Adapted& c, const Tensor& ids) {
  const auto adapted = c.model();
  attach_lora(*adapted, adapted->sequence(), c.lora, at::kDouble);
  const double s = c.lora.scale();
  const auto plain = c.model();
  plain->name_tree();
  std::map<std::string, Parameter*> by_name;
  for (const auto& p : plain->parameters()) {
    by_name[p->name()] = p.get();
    p->set_leaf(value_of(*p));
  }
  for (const auto& p : adapted->parameters()) {
    if (!p->is_quantized()) continue;
    by_name.at(p->name())->set_leaf(rounded(value_of(*p), *p->quantization()));
  }
  const auto each_target = [&](const auto& visit) {
    adapted->walk([&](Layer& layer) {
      const auto* linear = dynamic_cast<const Linear*>(&layer);
      if (linear == nullptr || !linear->has_lora()) return;
      const Parameters own = linear->own_parameters();
      visit(*by_name.at(linear->weight()->name()), linear->is_transposed(), *own[own.size() - 2],
            *own.back());
    });
  };
  each_target([&](Parameter& weight, bool is_transposed, const Parameter& a, const Parameter& b) {
    const Tensor delta = s * value_of(b).matmul(value_of(a));
    weight.set_leaf(weight.leaf().detach() + (is_transposed ? delta.t() : delta));
  });
  loss_of((*plain)(DTensor(ids, Axis(), Replicate{}), Context()), ids).backward();
  std::map<std::string, Tensor> out;
  each_target([&](Parameter& weight, bool is_transposed, const Parameter& a, const Parameter& b) {
    const Tensor dw = is_transposed ? weight.leaf().grad().t() : weight.leaf().grad();
    out[a.name()] = s * value_of(b).t().matmul(dw);
    out[b.name()] = s * dw.matmul(value_of(a).t());
  });
  return out;
}

/// Every data-parallel rank has the same sequences, so that its sums are multiples of the gradient.
void expect_gradients(const Adapted& c, ParallelConfig layout, const Tensor& ids,
                      const std::map<std::string, Tensor>& want) {
  layout.plan = c.model()->plan(layout.sequence_parallel);
  layout.compute_type = at::kDouble;
  layout.lora = c.lora;
  run_ranks(layout.num_ranks(), [&](World& world) {
    at::get_num_threads();
    at::set_num_threads(1);
    const Mesh mesh = Mesh::build(world, {{"pp", layout.pp}, {"dp", layout.dp}, {"tp", layout.tp}});
    const auto model = c.model();
    Parallelized p = parallelize(*model, model->sequence(),
                                 {.pp = mesh["pp"], .dp = mesh["dp"], .tp = mesh["tp"]}, layout);
    for (const auto& q : p.parameters()) {
      const Tensor part = q->part_of(value_of(*q));
      q->is_quantized() ? fill_quantized(*q, part) : q->set_leaf(part);
    }
    p.gradients->refresh_weights();
    p.gradients->begin(1);
    p.pipeline->run_train({{.input = DTensor(ids, mesh["tp"], Replicate{}), .context = {}}},
                          [&](const DTensor& logits, size_t) { return loss_of(logits, ids); });
    p.gradients->complete();
    for (const auto& q : trained_of(p.parameters())) {
      const Tensor whole = want.at(q->name()) * layout.dp;
      const double bound = 1e-10 * std::max(1.0, whole.abs().max().item<double>());
      EXPECT_LE(test::largest_difference(q->leaf().grad(), q->part_of(whole)), bound)
          << q->name() << ' ' << layout.describe();
    }
  });
}

std::vector<ParallelConfig> layouts() {
  return {{},
          {.tp = 3, .sequence_parallel = true, .recompute = RecomputeKind::kFull},
          {.pp = 2, .tp = 2, .schedule = ScheduleKind::kZeroBubble},
          {.dp = 2, .sharding = DataSharding::kZero1},
          {.dp = 2, .sharding = DataSharding::kFsdp, .recompute = RecomputeKind::kFull},
          {.dp = 2, .tp = 2, .sharding = DataSharding::kFsdp}};
}

// Experts and their routers, soft caps, scaled embeddings, fused and transposed projections.
TEST(Lora, AdaptersOnEveryLayout_HaveTheGradientsOfMergedWeights) {
  const std::string all(LoraOptions::kAllLinear);
  for (const Adapted& c :
       {Adapted("mixtral", {all, "gate"}), Adapted("gemma2", {all}),
        Adapted("gemma3-untied", {all, "lm_head"}, {{"final_logit_softcapping", 1.5}}),
        Adapted("phi3", {all}), Adapted("gpt2", {all})}) {
    const Tensor ids = test::ids({2, 6}, c.model()->facts().vocab_size, 7);
    const auto want = gradients_of_merged(c, ids);
    for (const ParallelConfig& layout : layouts()) expect_gradients(c, layout, ids, want);
  }
}

/// Compares a model beside frozen weights in fewer bits with one beside the rounded weights.
void expect_gradients_of_rounded(Adapted c, QuantizedForm form) {
  c.lora.base_form = form;
  const Tensor ids = test::ids({2, 6}, c.model()->facts().vocab_size, 7);
  const auto want = gradients_of_merged(c, ids);
  for (const ParallelConfig& layout : layouts()) expect_gradients(c, layout, ids, want);
}

// A matrix that is stored [in, out], experts whose router keeps its weight, and fused projections.
TEST(Lora, AdaptersOfAnInt8Base_HaveTheGradientsOfTheRoundedWeights) {
  const std::string all(LoraOptions::kAllLinear);
  for (const Adapted& c :
       {Adapted("mixtral", {all}), Adapted("phi3", {"qkv_proj"}), Adapted("gpt2", {all})}) {
    expect_gradients_of_rounded(c, QuantizedForm::kInt8);
  }
}

// Row-parallel ranks have parts of a block of 64 of the 197 inputs, and rows of an odd width.
TEST(Lora, AdaptersOfAnNf4Base_HaveTheGradientsOfTheRoundedWeights) {
  const std::string all(LoraOptions::kAllLinear);
  for (const Adapted& c : {Adapted("phi3", {"qkv_proj"}, {{"intermediate_size", 197}}),
                           Adapted("gpt2", {all}, {{"n_inner", 197}})}) {
    expect_gradients_of_rounded(c, QuantizedForm::kNf4);
  }
}

TEST(Lora, QuantizedBase_IsOfTheLinearLayersOfBlocksWithoutRouters) {
  const auto model = make_model(Json::parse_file(test::golden_folder("mixtral") + "/config.json"));
  attach_lora(*model, model->sequence(),
              {.rank = 2, .base_form = QuantizedForm::kInt8, .targets = {"q_proj"}}, at::kBFloat16);
  for (const auto& p : model->parameters()) {
    const std::string& name = p->name();
    const bool is_matrix_of_block = name.find(".layers.") != std::string::npos &&
                                    p->shape().size() == 2 && !p->is_adapter() &&
                                    name.find(".gate.") == std::string::npos;
    EXPECT_EQ(p->is_quantized(), is_matrix_of_block) << name;
    EXPECT_EQ(p->leaf_type(at::kFloat), p->is_adapter()     ? at::kFloat
                                        : p->is_quantized() ? at::kChar
                                                            : at::kBFloat16)
        << name;
  }
}

}  // namespace
}  // namespace cleave::lora_test
