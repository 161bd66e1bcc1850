#include "cleave/compat/oslo.h"

#include <filesystem>
#include <fstream>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/checkpoint/load.h"
#include "tests/support/golden.h"
#include "tests/support/oslo_models.h"
#include "tests/support/temp_folder.h"
#include "tests/support/thrown.h"

namespace cleave::oslo::oslo_test {
namespace {

using test::batch_of;
using test::config_of;
using test::golden_folder;
using test::largest_difference;
using test::on_world;
using test::thrown_by;
using test::whole_model;
using testing::AllOf;
using testing::HasSubstr;

Config parse(const std::string& text) {
  return {Json::parse(text, "oslo-config.json")};
}

TEST(OsloConfig, BlocksWithoutEnable_AreOn) {
  EXPECT_EQ(parse(R"({"model_parallelism": {"tensor_parallel_size": 3}})").tensor_parallel_size, 3);
  EXPECT_EQ(parse(R"({"model_parallelism": {"enable": true, "tensor_parallel_size": 2,
                      "pipeline_parallel_size": 1}})")
                .tensor_parallel_size,
            2);
  EXPECT_EQ(parse(R"({"model_parallelism": {}})").tensor_parallel_size, 1);
  EXPECT_EQ(parse("{}").tensor_parallel_size, 1);
  EXPECT_TRUE(parse(R"({"activation_checkpointing": {}})").activation_checkpointing);
  EXPECT_FALSE(parse("{}").activation_checkpointing);
}

TEST(OsloConfig, EnableFalse_TurnsABlockOff) {
  EXPECT_EQ(parse(R"({"model_parallelism": {"enable": false, "tensor_parallel_size": 4}})")
                .tensor_parallel_size,
            1);
  EXPECT_FALSE(
      parse(R"({"activation_checkpointing": {"enable": false}})").activation_checkpointing);
  EXPECT_NO_THROW(parse(R"({"kernel_fusion": {"enable": false, "custom_cuda_kernels": ["x"]}})"));
}

TEST(OsloConfig, File_IsReadAsTheObjectIs) {
  const test::TempFolder folder;
  std::ofstream(folder / "oslo-config.json")
      << R"({"model_parallelism": {"enable": true, "tensor_parallel_size": 4}})";
  EXPECT_EQ(Config(folder / "oslo-config.json").tensor_parallel_size, 4);
  EXPECT_EQ(thrown_by([&] { Config(folder / "none.json"); }).code(), Code::kIo);
}

TEST(OsloConfig, InvalidValues_AreReportedWithTheirPlaceAndRange) {
  const auto refused = [](const std::string& text) {
    const Error error = thrown_by([&] { parse(text); });
    EXPECT_EQ(error.code(), Code::kFormat);
    return std::string(error.what());
  };
  const auto size = [&](const std::string& value) {
    return refused(R"({"model_parallelism": {"tensor_parallel_size": )" + value + "}}");
  };
  EXPECT_EQ(size("0"),
            "oslo-config.json: \"model_parallelism.tensor_parallel_size\" is 0; expected an "
            "integer in [1, 65536] (byte 47)");
  for (const std::string value : {"-2", "2.5", "\"2\"", "true", "null", "[2]", "99999999999999"}) {
    EXPECT_THAT(size(value), HasSubstr("tensor_parallel_size\" is")) << value;
  }
  EXPECT_THAT(refused(R"({"model_paralelism": {}})"),
              AllOf(HasSubstr("unknown key"), HasSubstr("did you mean 'model_parallelism'")));
  EXPECT_THAT(refused(R"({"model_parallelism": {"tensor_paralel_size": 2}})"),
              HasSubstr("did you mean 'tensor_parallel_size'"));
  EXPECT_THAT(refused(R"({"model_parallelism": {"enable": 1}})"), HasSubstr("enable\" is 1"));
  EXPECT_THAT(refused(R"({"model_parallelism": 2})"), HasSubstr("expected an object"));
  EXPECT_THAT(refused("[]"), HasSubstr("expected an object"));
  EXPECT_THAT(refused(R"({"model_parallelism": {"pipeline_parallel_size": 2}})"),
              HasSubstr("pipeline_parallel_size\" is 2; expected 1"));
  EXPECT_THAT(refused(R"({"kernel_fusion": {"enable": true}})"), HasSubstr("kernel_fusion"));
  EXPECT_THAT(refused(R"({"activation_checkpointing": {"cpu_checkpointing": true}})"),
              HasSubstr("cpu_checkpointing\" is true; not supported"));
}

/// The error of initialize with groups of `tp` ranks in a job of `ranks`.
Error refusal_of(int ranks, int tp) {
  return thrown_by([&] {
    on_world(ranks, [&](World& world) { initialize(test::small_gpt2(), config_of(tp), world); });
  });
}

TEST(OsloInitialize, ImpossibleSize_IsRefusedWithThePossibleSizes) {
  const Error over = refusal_of(4, 8), odd = refusal_of(4, 3), heads = refusal_of(7, 7);
  EXPECT_EQ(over.code(), Code::kShape);
  EXPECT_STREQ(over.what(),
               "tensor_parallel_size=8 is more than the 4 ranks of this job; choose one of 1, 2, 4 "
               "or start 8 ranks");
  EXPECT_STREQ(odd.what(),
               "tensor_parallel_size=3 does not divide the 4 ranks of this job; choose one of 1, "
               "2, 4");
  EXPECT_EQ(heads.code(), Code::kShape);
  EXPECT_THAT(heads.what(), HasSubstr("tp=7 is more than num_attention_heads=6; choose tp from 1"));
}

TEST(OsloInitialize, ShardedModel_IsRefused) {
  on_world(2, [](World& world) {
    auto model = test::small_gpt2();
    parallelize_module(*model, Mesh::build(world, {{"tp", 2}})["tp"], model->plan());
    const Error error = thrown_by([&] { initialize(std::move(model), config_of(2), world); });
    EXPECT_EQ(error.code(), Code::kUsage);
    EXPECT_THAT(error.what(), HasSubstr("already sharded"));
  });
}

struct Layout {
  std::string golden;
  int tp = 1, dp = 1;
  bool recomputes = false;
};

// Oracle: transformers' models and torch.optim.AdamW. The optimizer is made of the whole model
// before it is sharded, as in the tutorial.
class OsloGolden : public ::testing::TestWithParam<Layout> {};

TEST_P(OsloGolden, OptimizerMadeBefore_GivesTheLossesNormsAndWeightsOfThreeSteps) {
  const Layout& l = GetParam();
  const auto golden = test::golden_answers(l.golden);
  on_world(l.tp * l.dp, [&](World& world) {
    auto whole = whole_model(golden_folder(l.golden));
    Optimizer optimizer(
        whole->parameters(),
        {.eps = 1e-6, .weight_decay = 0.01, .decay_on = OptimizerOptions::DecayOn::kAll});
    Config config = config_of(l.tp);
    config.activation_checkpointing = l.recomputes;
    ParallelModel model = initialize(std::move(whole), config, world);
    const auto rows = [&](const Tensor& t) {
      const int64_t n = t.size(0) / l.dp;
      return t.narrow(0, n * model.data_parallel().rank(), n);
    };
    {
      const at::NoGradGuard no_grad;
      const Tensor logits = model(batch_of(golden, "input", rows)).logits.full_tensor();
      EXPECT_LE(largest_difference(logits, rows(golden.at("logits"))), 5e-5);
    }
    for (int64_t step = 0; step < 3; ++step) {
      const auto at_step = [&](const Tensor& t) { return rows(t[step]); };
      const Tensor loss = model(batch_of(golden, "train", at_step)).loss;
      loss.backward();
      const double norm = model.step(optimizer, 1e-3);
      optimizer.zero_grad();
      const Tensor sum = model.data_parallel().all_reduce(loss.detach(), "test");
      EXPECT_NEAR(sum.item<double>() / l.dp, golden.at("adamw.loss")[step].item<float>(), 1e-5);
      EXPECT_NEAR(norm, golden.at("adamw.grad_norm")[step].item<float>(),
                  1e-5 * std::max(1.0, norm));
    }
    for (const auto& p : model.parameters()) {
      EXPECT_LE(test::golden_difference(golden, "adamw.step3", *p, p->leaf()), 1e-4) << p->name();
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Models, OsloGolden,
                         ::testing::Values(Layout{"gpt2", 1}, Layout{"gpt2", 2}, Layout{"gpt2", 3},
                                           Layout{"gpt2", 2, 2}, Layout{"gpt2", 2, 1, true},
                                           Layout{"gpt2-6heads", 4}, Layout{"llama-gqa-tied", 2},
                                           Layout{"llama-gqa-tied", 3}, Layout{"bert-mlm", 2},
                                           Layout{"bert-cls", 3}),
                         [](const auto& layout) {
                           std::string name = layout.param.golden + "_tp" +
                                              std::to_string(layout.param.tp) + "_dp" +
                                              std::to_string(layout.param.dp) +
                                              (layout.param.recomputes ? "_re" : "");
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(OsloModel, Beams_AreThoseOfTransformers) {
  const auto golden = test::golden_answers("gpt2");
  const Tensor want = golden.at("gen.single.beam3").view({3, -1});
  const Tensor prompt = golden.at("gen.single.prompt").flatten();
  const int64_t eos = golden.at("gen.eos_token_id").item<int64_t>();
  on_world(2, [&](World& world) {
    ParallelModel model = initialize(whole_model(golden_folder("gpt2")), config_of(2), world);
    const Ids ids(prompt.const_data_ptr<int64_t>(),
                  prompt.const_data_ptr<int64_t>() + prompt.numel());
    const Generation got = model.generate(
        {ids}, {.max_new_tokens = 12, .num_beams = 3, .num_return_sequences = 3, .eos_ids = {eos}});
    for (int64_t beam = 0; beam < 3; ++beam) {
      const Ids& new_ids = got.prompts[0][static_cast<size_t>(beam)].ids;
      for (size_t i = 0; i < new_ids.size(); ++i) {
        EXPECT_EQ(new_ids[i], want[beam][prompt.numel() + static_cast<int64_t>(i)].item<int64_t>());
      }
      EXPECT_GE(new_ids.size(), 1U);
    }
  });
}

// Oracle: the same weights without an end id.
TEST(OsloModel, WithoutEosIds_EndsAtThoseOfTheConfig) {
  const auto generated = [](const std::string& eos) {
    Ids ids;
    on_world(2, [&](World& world) {
      auto whole = make_model(Json::parse(
          str(R"({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 53,
              "n_embd": 24, "n_layer": 2, "n_head": 6, "n_positions": 16, "eos_token_id": )",
              eos, "}"),
          "config.json"));
      ParallelModel model = initialize(std::move(whole), config_of(2), world);
      materialize(model.model(), {.seed = 1});
      const Generation got = model.generate({{7, 11, 5}}, {.max_new_tokens = 8});
      if (world.rank() == 0) ids = got.prompts[0][0].ids;
    });
    return ids;
  };
  const Ids whole = generated("null");
  ASSERT_EQ(whole.size(), 8U);
  const auto end = std::find(whole.begin(), whole.end(), whole[2]);
  EXPECT_EQ(generated(std::to_string(whole[2])), Ids(whole.begin(), end + 1));
}

TEST(OsloModel, RanksWithDifferentBatches_AreStoppedAtTheFirstOne) {
  on_world(2, [](World& world) {
    ParallelModel model = initialize(test::small_gpt2(), config_of(2), world);
    materialize(model.model(), {.seed = 1});
    Batch batch;
    batch.ids = at::full({1, 4}, world.rank(), at::kLong);
    batch.labels = at::zeros({1, 4}, at::kLong);
    EXPECT_THAT(thrown_by([&] { model(batch); }).what(), HasSubstr("different first batches"));
  });
}

// Oracle: one rank with the whole batch. Each sequence has its own dropout.
TEST(OsloModel, FirstSampleAndMaskOfTheContext_AreThoseOfTheCall) {
  const Tensor ids = test::ids({4, 6}, 53, 1);
  const Tensor mask = at::arange(6).lt(5).expand({4, 6}).contiguous();
  std::vector<double> losses;
  for (const int dp : {1, 2}) {
    on_world(dp, [&](World& world) {
      ParallelModel model = initialize(
          make_model(Json::parse(
              R"({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 53,
              "n_embd": 24, "n_layer": 2, "n_head": 6, "n_positions": 16, "resid_pdrop": 0.5,
              "initializer_range": 0.3})",
              "config.json")),
          config_of(1), world);
      materialize(model.model(), {.seed = 1, .dtype = at::kDouble});
      const Axis& data = model.data_parallel();
      const auto own = static_cast<size_t>(data.rank());
      Batch batch;
      batch.ids = ids.chunk(dp)[own];
      batch.labels = batch.ids;
      Context context;
      context.training = true;
      context.seed = 3;
      context.first_sample = data.rank() * batch.ids.size(0);
      context.key_mask = mask.chunk(dp)[own];
      const Tensor loss = model(batch, context).loss.detach();
      const double mean = data.all_reduce(loss, "loss").item<double>() / dp;
      if (world.rank() == 0) losses.push_back(mean);
      batch.attention_mask = context.key_mask;
      EXPECT_EQ(model(batch, context).loss.item<double>(), loss.item<double>());
    });
  }
  EXPECT_NEAR(losses[0], losses[1], 1e-12);
}

TEST(OsloModel, GradientThatIsNotFinite_ChangesNothing) {
  on_world(1, [](World& world) {
    ParallelModel model = initialize(test::small_gpt2(), config_of(1), world);
    materialize(model.model(), {.seed = 1});
    Optimizer optimizer(model.parameters(), {});
    const auto first = model.parameters().front();
    const Tensor before = first->leaf().detach().clone();
    Batch batch;
    batch.ids = at::zeros({1, 4}, at::kLong);
    batch.labels = batch.ids;
    (model(batch).loss * std::numeric_limits<double>::infinity()).backward();
    EXPECT_EQ(thrown_by([&] { model.step(optimizer, 1e-3); }).code(), Code::kNumerics);
    EXPECT_TRUE(at::equal(first->leaf(), before));
  });
}

}  // namespace
}  // namespace cleave::oslo::oslo_test
