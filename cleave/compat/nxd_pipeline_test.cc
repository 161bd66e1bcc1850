#include "cleave/compat/nxd_pipeline.h"

#include <filesystem>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/compat/nxd.h"
#include "cleave/model/model.h"
#include "cleave/nn/cross_entropy.h"
#include "cleave/parallel/fsdp.h"
#include "tests/support/model_parallel.h"
#include "tests/support/temp_folder.h"
#include "tests/support/thrown.h"

namespace cleave::nxd::nxd_pipeline_test {
namespace {

const char* const kConfig = R"json({"model_type": "llama", "vocab_size": 29, "hidden_size": 12,
  "intermediate_size": 10, "num_hidden_layers": 5, "num_attention_heads": 3,
  "num_key_value_heads": 3, "head_dim": 4, "max_position_embeddings": 16,
  "tie_word_embeddings": true, "initializer_range": 0.3})json";

std::unique_ptr<Model> make() {
  return make_model(Json::parse(kConfig, "config.json"));
}

PipelineInputs batch_of(int64_t rows, uint64_t seed) {
  PipelineInputs inputs;
  inputs["input_ids"] = test::ids({rows, 6}, 29, seed);
  inputs["labels"] = test::ids({rows, 6}, 29, seed + 1);
  inputs["labels"].index_put_({at::tensor({0}, at::kLong), at::tensor({2}, at::kLong)}, -100);
  return inputs;
}

Tensor loss_of(const DTensor& logits, const PipelineInputs& inputs) {
  return cross_entropy(logits, next_token_labels(inputs.at("labels"))).local();
}

bool is_block(const Layer& layer) {
  return layer.path().find("layers.") != std::string::npos;
}

NxDPPModelOptions options() {
  return {.transformer_layer_cls = &is_block,
          .num_microbatches = 3,
          .output_loss_value_spec = &loss_of,
          .broadcast_and_average_loss = true,
          .input_names = {"input_ids", "labels"},
          .auto_partition = true};
}

void in_double(Layer& layer, at::Device device) {
  EXPECT_EQ(device, at::kCPU);
  for (const auto& p : layer.own_parameters()) {
    if (!p->leaf().defined()) p->set_leaf(p->initial_value(4, at::kDouble));
  }
}

/// Loss and gradients of the batch on one rank: the mean over micro-batches' means.
struct Want {
  double loss = 0;
  std::vector<double> losses;
  std::map<std::string, Tensor> gradients;
};

Want want_of(const PipelineInputs& inputs, int64_t num_parts) {
  Want want;
  test::on_ranks(1, [&](const Axis& axis) {
    const auto model = make();
    model->name_tree();
    model->walk([](Layer& layer) { in_double(layer, at::kCPU); });
    const int64_t rows = inputs.at("input_ids").size(0);
    for (int64_t i = 0; i < num_parts; ++i) {
      PipelineInputs part;
      for (const auto& [name, t] : inputs) {
        part[name] = t.slice(0, rows * i / num_parts, rows * (i + 1) / num_parts);
      }
      const Tensor loss =
          loss_of((*model)(DTensor(part["input_ids"], axis, Replicate{}), Context()), part);
      (loss / num_parts).backward();
      want.losses.push_back(loss.item<double>());
      want.loss += want.losses.back() / static_cast<double>(num_parts);
    }
    for (const auto& p : model->parameters()) want.gradients[p->name()] = p->leaf().grad();
  });
  return want;
}

TEST(NxDPPModel, AnyGroups_GiveLossAndGradientsOfOneRank) {
  const PipelineInputs all = batch_of(6, 3);
  const Want want = want_of(all, 6);  // one sequence per micro-batch: the same on every layout
  struct Case {
    int pp, dp, tp, virtual_size;
    bool zero1;
  };
  for (const Case& c : {Case{2, 1, 1, 1, false},
                        {2, 1, 1, 2, false},
                        {4, 1, 1, 1, false},
                        {2, 2, 1, 1, false},
                        {2, 2, 1, 1, true},
                        {2, 1, 3, 1, false}}) {
    test::on_groups(c.pp, c.dp, c.tp, [&] {
      const auto model = make();
      const Axis tp = get_tensor_model_parallel_group();
      if (c.tp > 1) parallelize_module(*model, tp, model->plan());
      NxDPPModelOptions o = options();
      o.num_microbatches = 6 / c.dp;
      o.virtual_pipeline_size = c.virtual_size;
      o.use_zero1_optimizer = c.zero1;
      o.param_init_fn = &in_double;
      NxDPPModel pipeline(*model, model->sequence(), o);
      PipelineInputs own;
      const int64_t share = 6 / c.dp, begin = share * get_data_parallel_rank();
      for (const auto& [name, t] : all) own[name] = t.slice(0, begin, begin + share);
      const auto loss = pipeline.run_train(own);
      ASSERT_EQ(loss.size(), 1U);
      EXPECT_NEAR(loss[0], want.loss, 1e-6);
      for (const auto& p : pipeline.local_parameters()) {
        const Tensor part = p->part_of(want.gradients.at(p->name()));
        if (part.numel() == 0) continue;
        EXPECT_LE((p->leaf().grad() - part).abs().max().item<double>(), 1e-12) << p->name();
      }
    });
  }
}

TEST(NxDPPModel, LossOptions_DetermineWhichRanksGetWhichLosses) {
  const PipelineInputs all = batch_of(5, 9);
  const Want want = want_of(all, 3);
  test::on_groups(2, 1, 1, [&] {
    for (const bool each : {false, true}) {
      const auto model = make();
      NxDPPModelOptions o = options();
      o.broadcast_and_average_loss = false;
      o.return_mb_loss = each;
      o.param_init_fn = &in_double;
      NxDPPModel pipeline(*model, model->sequence(), o);
      const auto losses = pipeline.run_eval(all);
      if (get_pipeline_model_parallel_rank() == 0) {
        EXPECT_TRUE(losses.empty());
      } else if (each) {
        ASSERT_EQ(losses.size(), 3U);
        for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(losses[i], want.losses[i], 1e-12);
      } else {
        ASSERT_EQ(losses.size(), 1U);
        EXPECT_NEAR(losses[0], want.loss, 1e-12);
      }
      const auto outputs = pipeline.run_eval_outputs(batch_of(4, 1));
      EXPECT_EQ(outputs.size(), get_pipeline_model_parallel_rank() == 0 ? 0U : 3U);
    }
  });
}

// Oracle: the mean over all labels of the whole batch.
TEST(NxDPPModel, TokenWeighted_IsTheMeanOverAllLabels) {
  PipelineInputs all = batch_of(4, 5);
  all["labels"].narrow(0, 0, 1).fill_(-100);
  const double want = want_of(all, 1).loss;
  test::on_groups(2, 2, 1, [&] {
    const auto model = make();
    NxDPPModelOptions o = options();
    o.num_microbatches = 2;
    o.token_weighted_loss = true;
    o.param_init_fn = &in_double;
    // A sequence without labels has no mean; its sum divided by at least one is 0.
    o.output_loss_value_spec = [](const DTensor& logits, const PipelineInputs& in) {
      const Tensor labels = next_token_labels(in.at("labels"));
      const int64_t count = std::max<int64_t>(in.at("labels").ne(-100).sum().item<int64_t>(), 1);
      return cross_entropy(logits, labels, {.valid_tokens = count}).local();
    };
    NxDPPModel pipeline(*model, model->sequence(), o);
    PipelineInputs own;
    for (const auto& [name, t] : all) {
      own[name] = t.slice(0, 2 * get_data_parallel_rank(), 2 * get_data_parallel_rank() + 2);
    }
    const auto losses = pipeline.run_train(own);
    ASSERT_EQ(losses.size(), 1U);
    // Labels are counted before they are shifted, here and in the weights.
    const double shifted = next_token_labels(all.at("labels")).ne(-100).sum().item<double>();
    const double counted = all.at("labels").ne(-100).sum().item<double>();
    EXPECT_NEAR(losses[0], want * shifted / counted, 1e-12);
  });
}

// Oracle: loss and gradients of the batch as one micro-batch. The first data-parallel rank has no
// labels, the second one a micro-batch with one and one with four.
TEST(NxDPPModel, TokenWeightedWithMicroBatchesWithoutLabels_IsTheMeanOverAllLabels) {
  PipelineInputs all = batch_of(4, 5);
  all["labels"].narrow(0, 0, 2).fill_(-100);
  all["labels"].narrow(0, 2, 1).narrow(1, 2, 4).fill_(-100);
  const Want want = want_of(all, 1);
  for (const bool is_sharded : {false, true}) {
    test::on_groups(2, 2, 1, [&] {
      const auto model = make();
      NxDPPModelOptions o = options();
      o.num_microbatches = 2;
      o.token_weighted_loss = true;
      o.count_labels = [](const PipelineInputs& in) {
        return next_token_labels(in.at("labels")).ne(-100).sum().item<int64_t>();
      };
      o.param_init_fn = &in_double;
      o.use_zero1_optimizer = is_sharded;
      NxDPPModel pipeline(*model, model->sequence(), o);
      PipelineInputs own;
      for (const auto& [name, t] : all) {
        own[name] = t.slice(0, 2 * get_data_parallel_rank(), 2 * get_data_parallel_rank() + 2);
      }
      EXPECT_NEAR(pipeline.run_train(own)[0], want.loss, 1e-6);
      for (const auto& p : pipeline.local_parameters()) {
        const Tensor part = p->part_of(want.gradients.at(p->name()));
        if (part.numel() == 0) continue;
        EXPECT_LE((p->leaf().grad() - part).abs().max().item<double>(), 1e-12) << p->name();
      }
    });
  }
}

// Oracle: one rank. Each sequence has its own dropout, whatever the ranks' shares of a batch are.
TEST(NxDPPModel, UnevenSharesOfABatch_HaveTheDropoutOfOneRank) {
  const Json config = Json::parse(
      R"({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 29,
      "n_embd": 12, "n_layer": 2, "n_head": 3, "n_positions": 16, "resid_pdrop": 0.5})",
      "config.json");
  double want = 0;
  for (const int dp : {1, 2, 3}) {
    test::on_groups(1, dp, 1, [&] {
      const auto model = make_model(config);
      NxDPPModelOptions o = options();
      o.transformer_layer_cls = [](const Layer& layer) {
        return layer.path().find(".h.") != std::string::npos;
      };
      o.num_microbatches = 1;
      o.token_weighted_loss = true;
      o.count_labels = [](const PipelineInputs& in) { return 5 * in.at("labels").size(0); };
      o.param_init_fn = &in_double;
      NxDPPModel pipeline(*model, model->sequence(), o);
      const SplitPtr shares = Split::balanced(7, dp);
      const Range mine = shares->ranges(get_data_parallel_rank()).front();
      const Tensor ids = test::ids({7, 6}, 29, 1).slice(0, mine.begin, mine.end);
      const double loss = pipeline.run_train({{"input_ids", ids}, {"labels", ids}})[0];
      if (dp == 1) want = loss;
      EXPECT_NEAR(loss, want, 1e-6) << dp;
    });
  }
}

// Oracle: the run that was not interrupted. Dropout depends on the step and the seed.
TEST(NxDPPModel, ResumedAtItsStep_ContinuesWithTheSameDropout) {
  const Json config = Json::parse(
      R"({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 29,
      "n_embd": 12, "n_layer": 2, "n_head": 3, "n_positions": 16, "resid_pdrop": 0.5})",
      "config.json");
  const auto loss_at = [&](int64_t first_step, int64_t step, uint64_t seed) {
    double loss = 0;
    test::on_groups(2, 1, 1, [&] {
      const auto model = make_model(config);
      NxDPPModelOptions o = options();
      o.transformer_layer_cls = [](const Layer& layer) {
        return layer.path().find(".h.") != std::string::npos;
      };
      o.param_init_fn = &in_double;
      o.seed = seed;
      NxDPPModel pipeline(*model, model->sequence(), o);
      pipeline.set_num_steps(first_step);
      double last = 0;
      while (pipeline.num_steps() <= step) {
        last = pipeline.run_train(batch_of(3, 1))[0];
        Optimizer(pipeline.local_parameters(), {}).zero_grad();  // no step: the weights stay
      }
      if (get_pipeline_model_parallel_rank() == 0) loss = last;
    });
    return loss;
  };
  const double unbroken = loss_at(0, 2, 1);
  EXPECT_EQ(loss_at(2, 2, 1), unbroken);
  EXPECT_NE(loss_at(0, 0, 1), unbroken);
  EXPECT_NE(loss_at(2, 2, 5), unbroken);  // weights are those of in_double, so only dropout differs
}

// Oracle: the same without ZeRO-1. The first stage has the frozen layers and nothing else.
TEST(NxDPPModel, StageOfWeightsThatAreNotTrainedNow_TrainsWithZero1) {
  std::vector<double> losses;
  for (const bool is_sharded : {false, true}) {
    test::on_groups(2, 2, 1, [&] {
      auto text = std::string(kConfig);
      const size_t tied = text.find("\"tie_word_embeddings\": true");
      text.replace(tied, std::string("\"tie_word_embeddings\": true").size(),
                   "\"tie_word_embeddings\": false");
      const auto model = make_model(Json::parse(text, "config.json"));
      NxDPPModelOptions o = options();
      o.use_zero1_optimizer = is_sharded;
      NxDPPModel pipeline(*model, model->sequence(), o);
      const Parameters parameters = pipeline.local_parameters();
      const bool is_first = get_pipeline_model_parallel_rank() == 0;
      const auto set_trained = [&](bool trained) {
        for (const auto& p : parameters) {
          if (is_first) p->leaf().set_requires_grad(trained);
        }
      };
      set_trained(false);
      Optimizer optimizer(parameters, {});
      for (uint64_t step = 0; step < 4; ++step) {
        if (step == 2) set_trained(true);
        const double loss = pipeline.run_train(batch_of(3, 10 + step))[0];
        nxd::clip_grad_norm(parameters, 1.0);
        optimizer.step(1e-2);
        optimizer.zero_grad();
        if (is_first && get_data_parallel_rank() == 0) losses.push_back(loss);
      }
    });
  }
  ASSERT_EQ(losses.size(), 8U);
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(losses[4 + i], losses[i], 1e-5) << i;
}

// Oracle: the same without FSDP. All sequences have as many labels, so their means do not depend on
// the number of micro-batches.
TEST(NxDPPModel, EvalWithFsdp_TakesAnotherNumberOfSequencesOnEachRank) {
  std::string untied = kConfig;
  untied.replace(untied.find("true"), 4, "false");     // so that stages share no weight
  enum class Sharded { kNothing, kAll, kFirstStage };  // other stages must follow the first one
  std::vector<double> losses;
  for (const Sharded sharded : {Sharded::kNothing, Sharded::kAll, Sharded::kFirstStage}) {
    test::on_groups(2, 2, 1, [&] {
      const auto model = make_model(Json::parse(untied, "config.json"));
      const std::vector<Layer*> sequence = model->sequence();
      NxDPPModelOptions o = options();
      o.num_microbatches = 4;
      o.auto_partition = false;
      o.pipeline_cuts = {sequence[1]->path()};
      for (size_t i = 0; i < sequence.size() && sharded != Sharded::kNothing; ++i) {
        if (i < 2 || sharded == Sharded::kAll) {
          fully_shard(*sequence[i], get_data_parallel_group());
        }
      }
      NxDPPModel pipeline(*model, model->sequence(), o);
      PipelineInputs own;
      own["input_ids"] = test::ids({get_data_parallel_rank() == 0 ? 4 : 2, 6}, 29, 1);
      own["labels"] = own["input_ids"];
      const double loss = pipeline.run_eval(own)[0];
      const bool is_first = get_data_parallel_rank() + get_pipeline_model_parallel_rank() == 0;
      if (is_first) losses.push_back(loss);
    });
  }
  ASSERT_EQ(losses.size(), 3U);
  EXPECT_GT(losses[0], 0);
  EXPECT_NEAR(losses[1], losses[0], 1e-5);
  EXPECT_NEAR(losses[2], losses[0], 1e-5);
}

TEST(NxDPPModel, LocalViews_CoverTheModelOnceAndRoundTrip) {
  std::map<std::string, int> holders;
  std::mutex mutex;
  test::on_groups(2, 1, 1, [&] {
    const auto model = make();
    NxDPPModel pipeline(*model, model->sequence(), options());
    for (const auto& [name, module] : pipeline.local_named_modules()) {
      EXPECT_EQ(name, module->path());
    }
    auto state = pipeline.local_state_dict();
    for (auto& [name, tensor] : state) tensor = at::full_like(tensor, 0.5);
    pipeline.load_state_dict(state);
    for (const auto& [name, p] : pipeline.local_named_parameters()) {
      EXPECT_TRUE(p->leaf().eq(0.5).all().item<bool>()) << name;
      const std::lock_guard lock(mutex);
      ++holders[name];
    }
    state.erase(state.begin());
    EXPECT_EQ(test::thrown_by([&] { pipeline.load_state_dict(state); }).code(), Code::kFormat);
  });
  EXPECT_EQ(holders.size(), make()->parameters().size());
  for (const auto& [name, count] : holders) {
    EXPECT_EQ(count, name == "model.embed_tokens.weight" ? 2 : 1) << name;  // the tied head
  }
}

TEST(NxDPPModel, Mistakes_AreNamed) {
  test::on_ranks(1, [](const Axis&) {
    const auto model = make();
    EXPECT_EQ(test::thrown_by([&] { NxDPPModel(*model, model->sequence(), options()); }).code(),
              Code::kUsage);
  });
  test::on_groups(2, 1, 1, [&] {
    const auto refused = [&](const std::function<void(NxDPPModelOptions&)>& change, Code code) {
      const auto model = make();
      NxDPPModelOptions o = options();
      change(o);
      const Error error =
          test::thrown_by([&] { NxDPPModel(*model, model->sequence(), o).partition(); });
      EXPECT_EQ(error.code(), code) << error.what();
    };
    refused([](auto& o) { o.transformer_layer_cls = nullptr; }, Code::kUsage);
    refused([](auto& o) { o.pipeline_cuts = {"model.layers.1"}; }, Code::kUsage);
    refused([](auto& o) { o.return_mb_loss = true; }, Code::kUsage);
    refused([](auto& o) { o.virtual_pipeline_size = 3; }, Code::kShape);  // 6 stages, 5 blocks
    const auto cut = [](std::vector<std::string> cuts) {
      return [cuts = std::move(cuts)](auto& o) {
        o.auto_partition = false;
        o.pipeline_cuts = cuts;
      };
    };
    refused(cut({"model.layers.1", "model.layers.2"}), Code::kShape);
    refused(cut({"model.layer.1"}), Code::kShape);
    refused(
        [](auto& o) {
          o.auto_partition = false;
          o.pipeline_cuts = {"model.layers.1"};
          o.input_names = {};
        },
        Code::kUsage);
    const auto model = make();
    NxDPPModelOptions o = options();
    o.auto_partition = false;
    NxDPPModel by_hand(*model, model->sequence(), o);
    EXPECT_EQ(test::thrown_by([&] { (void)by_hand.local_parameters(); }).code(), Code::kUsage);
    EXPECT_EQ(test::thrown_by([&] { by_hand.run_train(batch_of(3, 1)); }).code(), Code::kUsage);
    by_hand.cut_pipeline_stage("model.layers.0");
    by_hand.partition();
    PipelineInputs other = batch_of(3, 1);
    other.erase("labels");
    EXPECT_EQ(test::thrown_by([&] { by_hand.run_train(other); }).code(), Code::kUsage);
    EXPECT_EQ(test::thrown_by([&] { by_hand.run_train(batch_of(2, 1)); }).code(), Code::kShape);
  });
}

/// Layers of nxd.h, each with its own dtype, on plain tensors.
class Wide : public PlainLayer {
 public:
  explicit Wide(at::ScalarType type)
      : up_(4, 6, {.gather_output = false, .dtype = type}),
        down_(6, 4, {.input_is_parallel = true, .dtype = type}) {
    add("up", up_);
    add("down", down_);
  }

 protected:
  Tensor compute(const Tensor& x, const Context& context) override {
    const Tensor in = x.to(up_.weight()->leaf().scalar_type());
    return down_(up_(context.key_mask.defined() ? in * context.key_mask.unsqueeze(-1) : in));
  }

 private:
  ColumnParallelLinear up_;
  RowParallelLinear down_;
};

struct Tower : LayerGroup {
  Tower() : first(at::kDouble), second(at::kFloat) {
    add("first", first);
    add("second", second);
  }
  Wide first, second;
};

// Oracle: the parameters' initial values; also that ranks without a plan compute at all.
TEST(NxDPPModel, ParallelLayers_KeepTheirDtypeAndTakeTheSeed) {
  for (const int pp : {1, 2}) {
    test::on_groups(pp, 1, 2, [&] {
      Tower tower;
      NxDPPModel model(
          tower, {&tower.first, &tower.second},
          {.transformer_layer_cls = [](const Layer&) { return true; },
           .output_loss_value_spec = [](const DTensor& y,
                                        const PipelineInputs&) { return y.local().square().sum(); },
           .first_input = "pixels",
           .set_context =
               [](Context& context, const PipelineInputs& in) {
                 context.key_mask = in.at("is_real").to(at::kBool);
               },
           .seed = 7,
           .auto_partition = true});
      for (const auto& p : model.local_parameters()) {
        const auto type = p->name().starts_with("first") ? at::kDouble : at::kFloat;
        ASSERT_EQ(p->leaf().scalar_type(), type) << p->name();
        EXPECT_TRUE(p->leaf().equal(p->initial_value(7, type))) << p->name();
        EXPECT_FALSE(p->leaf().equal(p->initial_value(0, type))) << p->name();
      }
      const Tensor pixels = at::ones({2, 3, 4}), none = at::zeros({2, 3});
      const auto loss_of_inputs = [&](const Tensor& x, const Tensor& mask) {
        const auto losses = model.run_eval({{"pixels", x}, {"is_real", mask}});
        return losses.empty() ? 0 : losses[0];
      };
      const double masked = loss_of_inputs(pixels, none);
      EXPECT_EQ(masked, loss_of_inputs(at::zeros({2, 3, 4}), none));
      const double unmasked = loss_of_inputs(pixels, at::ones({2, 3}));
      EXPECT_EQ(masked == unmasked, pp == 2 && get_pipeline_model_parallel_rank() == 0);
      (void)model.run_train({{"pixels", pixels}, {"is_real", at::ones({2, 3})}});
    });
  }
}

// Oracle: the mean over the sequences' losses.
TEST(NxDPPModel, EvalOfFewerSequencesThanMicroBatches_IsTheirMean) {
  const PipelineInputs all = batch_of(2, 9);
  const Want want = want_of(all, 2);
  test::on_groups(2, 1, 1, [&] {
    const auto model = make();
    NxDPPModelOptions o = options();
    o.num_microbatches = 5;
    o.param_init_fn = &in_double;
    NxDPPModel pipeline(*model, model->sequence(), o);
    EXPECT_NEAR(pipeline.run_eval(all)[0], want.loss, 1e-12);
    const bool is_last = get_pipeline_model_parallel_rank() == 1;
    EXPECT_EQ(pipeline.run_eval_outputs(all).size(), is_last ? 2U : 0U);
  });
}

// One micro-batch per sequence, whatever the other rank has; with FSDP they must agree.
TEST(NxDPPModel, EvalWithoutFsdp_IsOfEachRankAlone) {
  test::on_groups(1, 2, 1, [&] {
    const auto model = make();
    NxDPPModelOptions o = options();
    o.num_microbatches = 4;
    NxDPPModel pipeline(*model, model->sequence(), o);
    const int64_t rows = get_data_parallel_rank() == 0 ? 4 : 2;
    EXPECT_EQ(std::ssize(pipeline.run_eval_outputs(batch_of(rows, 1))), rows);
    const Error error = test::thrown_by([&] { fully_shard(*model->sequence()[0], Axis()); });
    EXPECT_EQ(error.code(), Code::kUsage);
    EXPECT_NE(std::string(error.what()).find("its gradients are summed during backward"),
              std::string::npos)
        << error.what();
  });
}

TEST(NxDPPModel, GroupWithoutACall_IsRefusedByName) {
  test::on_groups(1, 1, 1, [&] {
    struct Inner : LayerGroup {
    } inner;
    struct Outer : LayerGroup {
      explicit Outer(Layer& part) { add("part", part); }
    } outer(inner);
    const Error error = test::thrown_by([&] {
      NxDPPModel(outer, {&inner}, {.transformer_layer_cls = &is_block, .auto_partition = true});
    });
    EXPECT_EQ(error.code(), Code::kUsage);
    EXPECT_NE(std::string(error.what()).find("part is a LayerGroup"), std::string::npos)
        << error.what();
  });
}

TEST(NxDPPModel, TraceFile_HasEveryActionOfTheFirstStep) {
  const test::TempFolder folder;
  const std::string path = (folder / "trace.json").string();
  test::on_groups(2, 1, 1, [&] {
    const auto model = make();
    NxDPPModelOptions o = options();
    o.trace_file_path = path;
    NxDPPModel pipeline(*model, model->sequence(), o);
    pipeline.run_train(batch_of(3, 1));
    Optimizer(pipeline.local_parameters(), {}).zero_grad();
    pipeline.run_train(batch_of(3, 2));
  });
  std::ifstream file(path);
  const auto trace = nlohmann::json::parse(file);
  EXPECT_EQ(trace.size(), 2U * 2U * 2U * 3U);  // begin and end, forward and backward, ranks, parts
}

}  // namespace
}  // namespace cleave::nxd::nxd_pipeline_test
