// Training of LoRA adapters. Oracle of values: PEFT with transformers in fp32
// (tests/golden/make_lora.py). Oracle of runs: the uninterrupted run on one rank.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/checkpoint/adapter.h"
#include "cleave/checkpoint/adapter_config.h"
#include "cleave/checkpoint/convert.h"
#include "cleave/checkpoint/load.h"
#include "cleave/comm/api/world.h"
#include "cleave/file/file.h"
#include "cleave/file/folder_writer.h"
#include "cleave/format/safetensors_writer.h"
#include "cleave/mesh/scalar_type.h"
#include "cleave/planner/forecast.h"
#include "cleave/train/rank_model.h"
#include "tests/support/golden.h"
#include "tests/support/lora_runs.h"
#include "tests/support/paths.h"
#include "tests/support/temp_folder.h"
#include "tests/support/thrown.h"

namespace cleave::lora_test {
namespace {

namespace fs = std::filesystem;
using test::TempFolder;

std::string adapter_folder(const std::string& golden) {
  return test::source_file("tests/golden/lora/" + golden);
}

/// The golden model of an adapter: "gpt2" of "gpt2-dora".
std::string base_of(const std::string& golden) {
  return golden.substr(0, golden.find("-dora"));
}

struct Case {
  std::string golden;  ///< of the adapter
  std::string name;
  ParallelConfig layout;
};

// As in tests/golden/make_lora.py.
constexpr float kScaleA = 0.5F, kScaleB = 0.2F, kScaleM = 0.5F, kCenterM = 1;

/// A golden model with adapters, which have the first values of the golden.
class Trained {
 public:
  Trained(const std::string& golden, ParallelConfig layout, World& world) : dp_size_(layout.dp) {
    const std::string folder = test::golden_folder(base_of(golden));
    auto model = make_model(Json::parse_file(folder + "/config.json"));
    layout.plan = model->plan(layout.sequence_parallel);
    layout.lora = read_lora(adapter_folder(golden));
    mesh_ = std::make_unique<Mesh>(
        Mesh::build(world, {{"pp", layout.pp}, {"dp", layout.dp}, {"tp", layout.tp}}));
    rank_ = std::make_unique<RankModel>(
        std::move(model), layout, *mesh_, world,
        OptimizerOptions{
            .eps = 1e-6, .weight_decay = 0.01, .decay_on = OptimizerOptions::DecayOn::kAll});
    load_model(rank_->model(), ModelFolder::open(folder), at::kFloat);
    const uint64_t seed = seed_of(golden);
    for (const auto& p : adapters()) {
      const std::string name = adapter_name(p->name());
      const bool is_a = name.find("lora_A") != std::string::npos;
      const bool is_m = p->shape().size() == 1;
      const float scale = is_a ? kScaleA : is_m ? kScaleM : kScaleB;
      const float center = is_m ? kCenterM : 0;
      p->set_leaf(p->part_of(test::golden_values(seed, name, p->shape(), scale, center)));
    }
    rank_->refresh_weights();
  }

  RankModel& rank() { return *rank_; }
  /// Those of this rank's stages.
  [[nodiscard]] Parameters adapters() const { return trained_of(rank_->parameters()); }

  /// Loss over all data-parallel ranks, and the gradient norm, of one step.
  std::pair<double, double> step(const test::Tensors& answers, int64_t step) {
    const Tensor all =
        step == 0 ? answers.at("input.input_ids") : answers.at("train.input_ids")[step];
    const int64_t rows = all.size(0) / dp_size_;
    Batch batch;
    batch.ids = all.narrow(0, rows * (*mesh_)["dp"].rank(), rows);
    batch.labels = batch.ids;
    rank_->optimizer().zero_grad();
    const PassResult pass = rank_->train_pass(micro_batches_of(batch, 1, rows), 0, step);
    rank_->step(1e-3);
    const Tensor loss = (*mesh_)["dp"].all_reduce(at::scalar_tensor(pass.loss, at::kDouble), "t");
    return {loss.item<double>(), pass.norm.value};
  }

 private:
  static uint64_t seed_of(const std::string& golden) {
    const Json spec =
        Json::parse_file(test::source_file("tests/golden/models/" + base_of(golden) + ".json"));
    return static_cast<uint64_t>(spec.at("seed").as_int(0));
  }

  int64_t dp_size_;
  std::unique_ptr<Mesh> mesh_;
  std::unique_ptr<RankModel> rank_;
};

class LoraGolden : public ::testing::TestWithParam<Case> {};

// Bounds: those of the golden models (tests/support/golden_model.h).
TEST_P(LoraGolden, ThreeAdamWSteps_GiveTheLossesNormsAndAdaptersOfPeft) {
  const Case& c = GetParam();
  const test::Tensors inputs = test::golden_answers(base_of(c.golden));
  const test::Tensors want = test::read_tensors(adapter_folder(c.golden) + "/answers.safetensors");
  const test::Tensors last =
      test::read_tensors(adapter_folder(c.golden) + "/adapter_model.safetensors");
  run_ranks(c.layout.num_ranks(), [&](World& world) {
    Trained model(c.golden, c.layout, world);
    for (int64_t step = 0; step < 3; ++step) {
      const auto [loss, norm] = model.step(inputs, step);
      EXPECT_NEAR(loss, want.at("loss")[step].item<float>(), 1e-5) << step;
      EXPECT_NEAR(norm, want.at("grad_norm")[step].item<float>(), 1e-5 * std::max(1.0, norm));
    }
    for (const auto& p : model.adapters()) {
      const Tensor& whole = last.at(adapter_name(p->name()));
      EXPECT_LE(test::largest_difference(p->leaf(), p->part_of(whole)), 1e-4) << p->name();
    }
    for (const auto& p : model.rank().parameters()) {
      EXPECT_FALSE(p->is_frozen() && p->leaf().requires_grad()) << p->name();
      EXPECT_FALSE(p->is_frozen() && p->leaf().grad().defined()) << p->name();
    }
    EXPECT_EQ(model.rank().optimizer().states().size(), model.adapters().size());
  });
}

std::vector<Case> cases() {
  std::vector<Case> out;
  for (const std::string golden :
       {"llama-6heads", "gpt2", "phi3", "llama-6heads-dora", "gpt2-dora"}) {
    const auto add = [&](const std::string& name, const ParallelConfig& layout) {
      out.push_back({.golden = golden, .name = name, .layout = layout});
    };
    add("one", {});
    add("tp2", {.tp = 2});
    add("tp3", {.tp = 3});
    add("tp2_sp", {.tp = 2, .sequence_parallel = true});
    add("pp2", {.pp = 2});
    add("dp2", {.dp = 2});
    add("dp2_zero1", {.dp = 2, .sharding = DataSharding::kZero1});
    add("dp2_fsdp", {.dp = 2, .sharding = DataSharding::kFsdp});
    add("recompute", {.recompute = RecomputeKind::kFull});
    add("dp2_fsdp_recompute",
        {.dp = 2, .sharding = DataSharding::kFsdp, .recompute = RecomputeKind::kFull});
    add("pp2_zero_bubble", {.pp = 2, .schedule = ScheduleKind::kZeroBubble});
    add("tp2_pp2_dp2_zero1", {.pp = 2, .dp = 2, .tp = 2, .sharding = DataSharding::kZero1});
  }
  return out;
}

std::string name_of(const ::testing::TestParamInfo<Case>& tested) {
  std::string name = str(tested.param.golden, '_', tested.param.name);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Layouts, LoraGolden, ::testing::ValuesIn(cases()), name_of);

// The tolerance is bf16's 8 bits over two layers.
TEST(Lora, Bf16_GivesTheLossesOfFp32AndHasNoMastersOfFrozenWeights) {
  const test::Tensors inputs = test::golden_answers("llama-6heads");
  const test::Tensors want =
      test::read_tensors(adapter_folder("llama-6heads") + "/answers.safetensors");
  for (const ParallelConfig& sizes : {ParallelConfig{}, ParallelConfig{.tp = 2},
                                      ParallelConfig{.dp = 2, .sharding = DataSharding::kFsdp}}) {
    ParallelConfig layout = sizes;
    layout.compute_type = at::kBFloat16;
    run_ranks(layout.num_ranks(), [&](World& world) {
      Trained model("llama-6heads", layout, world);
      for (const auto& p : model.rank().parameters()) {
        EXPECT_EQ(p->leaf().scalar_type(), p->is_frozen() ? at::kBFloat16 : at::kFloat);
      }
      const auto [loss, norm] = model.step(inputs, 0);
      const double expected = want.at("loss")[0].item<float>();
      EXPECT_NEAR(loss, expected, 0.02 * expected) << layout.describe();
      const double expected_norm = want.at("grad_norm")[0].item<float>();
      EXPECT_NEAR(norm, expected_norm, 0.05 * expected_norm) << layout.describe();
    });
  }
}

// Oracle: the logits of PEFT's merge_and_unload.
TEST(Lora, AdapterOfPeft_MergesIntoItsLogits) {
  for (const std::string golden :
       {"llama-6heads", "gpt2", "phi3", "llama-6heads-dora", "gpt2-dora"}) {
    const test::Tensors inputs = test::golden_answers(base_of(golden));
    const test::Tensors want = test::read_tensors(adapter_folder(golden) + "/answers.safetensors");
    const ModelFolder folder =
        ModelFolder::open(test::golden_folder(base_of(golden)), adapter_folder(golden));
    for (const int tp : {1, 2, 3}) {
      run_ranks(tp, [&](World& world) {
        const Axis axis = Mesh::build(world, {{"tp", tp}})["tp"];
        auto model = make_model(folder.config);
        parallelize_module(*model, axis, model->plan());
        load_model(*model, folder, at::kFloat);
        const at::NoGradGuard no_grad;
        const DTensor ids(inputs.at("input.input_ids"), axis, Replicate{});
        const Tensor logits = (*model)(ids, Context()).full_tensor();
        EXPECT_LE(test::largest_difference(logits, want.at("logits")), 5e-5) << golden << tp;
      });
    }
  }
}

// Oracle: 2 bytes a frozen weight in bf16; of an adapter's element 4 bytes of master weight and 2
// of its copy, 8 of moments, 2 of gradient.
TEST(Lora, Forecast_CountsFrozenWeightsInTheComputeTypeOnly) {
  const Json config = Json::parse_file(test::golden_folder("llama-6heads") + "/config.json");
  ParallelConfig layout{.compute_type = at::kBFloat16, .lora = LoraOptions{.rank = 4}};
  const auto model = make_model(config);
  int64_t frozen = 0;
  int64_t adapters = 0;
  for (const auto& p : model->parameters()) frozen += p->numel();
  attach_lora(*model, model->sequence(), *layout.lora, layout.compute_type);
  for (const auto& p : trained_of(model->parameters())) adapters += p->numel();
  const MemoryForecast m =
      forecast(config, layout, {.batch_size = 2, .micro_batch_size = 2, .seq_len = 8})
          .ranks[0]
          .memory;
  EXPECT_EQ(m.weights, 2 * frozen + 6 * adapters);
  EXPECT_EQ(m.optimizer, 8 * adapters);
  EXPECT_EQ(m.gradients, 2 * adapters);
}

// Oracle: 6 for each element of a trained matrix and token; 4 for each of a frozen one, whose
// gradient is not computed. The head is not a target, and frozen too.
TEST(Lora, FlopsOfAStep_LeaveOutTheGradientsOfFrozenMatrices) {
  const auto model = make_model(Json::parse(R"({"model_type": "llama", "vocab_size": 10,
    "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2,
    "max_position_embeddings": 16, "tie_word_embeddings": false})",
                                            "config.json"));
  const double all = model->train_flops_per_token(4);
  attach_lora(*model, model->sequence(), {.rank = 2}, at::kFloat);
  const double matrices = 4 * 8 * 8 + 3 * 8 * 12 + 8 * 10;
  const double adapters = 2 * (4 * (8 + 8) + 3 * (8 + 12));
  EXPECT_EQ(model->train_flops_per_token(4), all - 2 * matrices + 6 * adapters);
}

TEST(Lora, AdapterConfigWithInvalidValues_IsRefused) {
  const TempFolder folder;
  for (const char* config :
       {"[]", R"({"r": 0})", R"({"r": -4})", R"({"r": 1e9})", R"({"r": "8"})", R"({"r": 2.5})",
        R"({"lora_alpha": 1e300})", R"({"lora_alpha": -1e300})", R"({"lora_alpha": "16"})",
        R"({"use_rslora": "yes"})", R"({"target_modules": 3})", R"({"target_modules": [3]})",
        R"({"peft_type": "IA3"})", R"({"peft_type": 1})", R"({"bias": "all"})",
        R"({"rank_pattern": {"q_proj": 4}})", R"({"init_lora_weights": "pissa"})"}) {
    std::ofstream(folder / "adapter_config.json") << config;
    try {
      (void)read_lora(folder.path());
      FAIL() << config;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kFormat) << config;
    }
  }
  std::ofstream(folder / "adapter_config.json") << "{}";
  EXPECT_EQ(read_lora(folder.path()).scale(), 1);  // PEFT's defaults: 8 / 8
}

using test::LoraRuns;

TEST_F(LoraRuns, RunResumedOnOtherLayouts_GivesTheLossesOfTheUninterruptedOne) {
  const std::vector<double> want = losses(options("whole"));
  ASSERT_EQ(want.size(), 6U);
  TrainOptions first = options("moved");
  first.tp = 2;
  const fs::path run = resumed_at_3(first).out;
  // A checkpoint is PEFT's folder with the optimizer's state, without the frozen weights.
  const fs::path saved = run / "step_00000003";
  EXPECT_TRUE(fs::exists(saved / "adapter_model.safetensors"));
  EXPECT_TRUE(fs::exists(saved / "optimizer.safetensors"));
  EXPECT_FALSE(fs::exists(saved / "model.safetensors"));
  fs::copy(run, folder_ / "fsdp", fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  for (const bool is_fsdp : {false, true}) {
    TrainOptions second = options(is_fsdp ? "fsdp" : "moved");
    second.resume = true;
    (is_fsdp ? second.dp : second.tp) = 2;
    (is_fsdp ? second.fsdp : second.sequence_parallel) = true;
    expect_losses(second, want);
  }
}

// The masks depend on the place of a sequence in the batch only: on no layout, and not on where a
// run resumes.
TEST_F(LoraRuns, Dropout_GivesTheLossesOfOneRankOnEveryLayoutAndAfterResuming) {
  const auto with_dropout = [&](const std::string& out) {
    TrainOptions o = options(out);
    o.lora_dropout = 0.5;
    return o;
  };
  const std::vector<double> want = losses(with_dropout("one"));
  const std::vector<double> plain = losses(options("plain"));
  EXPECT_NE(want.back(), plain.back());
  const auto config =
      nlohmann::json::parse(read_file(folder_ / "one/step_00000006/adapter_config.json"));
  EXPECT_EQ(config["lora_dropout"], 0.5);
  TrainOptions tp = with_dropout("tp");
  tp.tp = 2;
  tp.sequence_parallel = true;
  tp.recompute = "full";
  TrainOptions pp = with_dropout("pp");
  pp.pp = 2;
  pp.micro_batch_size = 1;
  TrainOptions fsdp = with_dropout("fsdp");
  fsdp.dp = 2;
  fsdp.fsdp = true;
  TrainOptions resumed = resumed_at_3(with_dropout("resumed"));
  resumed.lora = 0;  // the checkpoint has the values
  resumed.lora_dropout = 0;
  resumed.lora_targets.clear();
  for (const TrainOptions& o : {tp, pp, fsdp, resumed}) expect_losses(o, want);
}

// Pipeline stages whose weights are all frozen: the first one, or the last one.
TEST_F(LoraRuns, StageWithoutAdapters_GivesTheLossesOfOneRankAndSaves) {
  for (const std::string layer : {"0", "1"}) {
    TrainOptions one = options("one" + layer);
    one.lora_targets = {"layers." + layer + ".self_attn.q_proj"};
    const std::vector<double> want = losses(one);
    TrainOptions two = options("two" + layer);
    two.lora_targets = one.lora_targets;
    two.pp = 2;
    two.dp = 2;
    two.zero = 1;
    two.recompute = "full";
    const std::vector<double> got = losses(two);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 2e-4 * want[i]) << i;
    const fs::path adapter = fs::path(two.out) / "step_00000006" / "adapter_model.safetensors";
    EXPECT_EQ(test::read_tensors(adapter).size(), 2U);
  }
}

/// A weight with its adapter (scale 2) by torch in fp64.
Tensor with_adapter(const std::string& name, const Tensor& weight, const test::Tensors& low) {
  const std::string stem = adapter_name(name.substr(0, name.rfind('.') + 1));
  const auto a = low.find(stem + "lora_A.weight");
  if (a == low.end()) return weight.to(at::kDouble);
  const Tensor b = low.at(stem + "lora_B.weight").to(at::kDouble);
  return weight.to(at::kDouble) + 2 * b.matmul(a->second.to(at::kDouble));
}

// Oracle: base + scale B A by torch in fp64, and PEFT if the Python of CLEAVE_PYTHON has it.
TEST_F(LoraRuns, SavedAdapter_MergesIntoAPlainModelAsInPeft) {
  const TrainOptions o = options("run");
  cleave_train(o);
  const fs::path adapter = fs::path(o.out) / "step_00000006";
  for (const bool is_given : {false, true}) {
    ConvertOptions c;
    c.from = is_given ? base_ : o.out;
    c.adapter = is_given ? o.out : "";
    c.to = folder_ / (is_given ? "given" : "own");
    const ConvertReport report = convert(c);
    EXPECT_TRUE(report.left_state);  // the adapter's; the base model has none
    const test::Tensors base = test::read_tensors(base_);
    const test::Tensors low = test::read_tensors(adapter / "adapter_model.safetensors");
    const test::Tensors merged = test::read_tensors(c.to);
    ASSERT_EQ(merged.size(), base.size());
    int num_changed = 0;
    for (const auto& [name, value] : base) {
      const Tensor want = with_adapter(name, value, low);
      num_changed += at::equal(want, value.to(at::kDouble)) ? 0 : 1;
      EXPECT_LE(test::largest_difference(merged.at(name), want), 1e-6) << name;
    }
    EXPECT_EQ(num_changed * 2, std::ssize(low));
  }
  expect_merged_as_peft_does(adapter, folder_ / "own");
}

/// Writes an adapter's folder with the config of another one.
void write_adapter(const fs::path& path, const fs::path& config, const test::Tensors& tensors) {
  std::vector<TensorInfo> infos;
  for (const auto& [name, tensor] : tensors) {
    infos.push_back({name, dtype_of(tensor.scalar_type()), tensor.sizes().vec()});
  }
  FolderWriter folder(path);
  const SafetensorsPlan plan(infos, {.stem = std::string(kAdapterStem)});
  plan.create_files(folder);
  SafetensorsWriter writer(folder.path(), plan);
  for (const auto& [name, tensor] : tensors) {
    writer.write_block(name, {},
                       {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()});
  }
  writer.finish();
  folder.write_file("adapter_config.json", read_file(config / "adapter_config.json"));
  folder.commit();
}

// PEFT writes a copy of the base model's head beside an adapter of it, in the dtype of its model.
TEST_F(LoraRuns, AdapterOfPeftForTheHead_MergesIfItsCopyOfTheHeadIsTheModels) {
  TrainOptions o = options("run");
  o.lora_targets = {"lm_head"};
  o.steps = 1;
  cleave_train(o);
  const fs::path saved = fs::path(o.out) / "step_00000001";
  test::Tensors tensors = test::read_tensors(saved / "adapter_model.safetensors");
  const test::Tensors base = test::read_tensors(base_), low = tensors;
  const Tensor head = base.at("lm_head.weight");
  const std::string copy = "base_model.model.lm_head.base_layer.weight";
  const auto merged = [&](const std::string& name, const Tensor& values) {
    tensors[copy] = values;
    write_adapter(folder_ / name, saved, tensors);
    convert({.from = base_, .to = folder_ / (name + "-merged"), .adapter = folder_ / name});
    return test::read_tensors(folder_ / (name + "-merged")).at("lm_head.weight");
  };
  const Tensor want = with_adapter("lm_head.weight", head, low);
  EXPECT_LE(test::largest_difference(merged("same", head), want), 1e-6);
  EXPECT_LE(test::largest_difference(merged("narrow", head.to(at::kBFloat16)), want), 1e-6);
  EXPECT_LE(test::largest_difference(merged("wide", head.to(at::kDouble) * (1 + 1e-12)), want),
            1e-6);
  Tensor other = head.clone();
  other[95][63] += 1e-3;
  const Error error = test::thrown_by([&] { (void)merged("other", other); });
  EXPECT_EQ(error.code(), Code::kFormat);
  EXPECT_EQ(std::string(error.what()),
            str((folder_ / "other").string(), " is an adapter of another model: ", copy,
                " differs from this model's lm_head.weight"));
}

// Merged weights of a bf16 base, rounded to bf16, would lose most of a small adapter.
TEST_F(LoraRuns, AdapterOfANarrowBase_IsMergedInTheDtypeAskedFor) {
  const std::string narrow = folder_ / "narrow";
  convert({.from = base_, .to = narrow, .dtype = "bf16"});
  TrainOptions o = options("run");
  o.model = narrow;
  cleave_train(o);
  const std::string merged = folder_ / "merged";
  convert({.from = narrow, .to = merged, .dtype = "fp32", .adapter = o.out});
  const auto model = make_model(Json::parse_file(narrow + "/config.json"));
  load_model(*model, ModelFolder::open(narrow, o.out), at::kDouble);
  const test::Tensors base = test::read_tensors(narrow), written = test::read_tensors(merged);
  const test::Tensors low =
      test::read_tensors(fs::path(o.out) / "step_00000006/adapter_model.safetensors");
  for (const auto& parameter : model->parameters()) {
    const std::string& name = parameter->name();
    const Tensor want = with_adapter(name, base.at(name), low);
    EXPECT_LE(test::largest_difference(parameter->leaf(), want), 1e-14) << name;
    EXPECT_LE(test::largest_difference(written.at(name), want), 1e-6) << name;
  }
}

// As in generate and convert: the folder of the adapter has no generation settings of its own.
TEST_F(LoraRuns, AdapterTrainedWithoutLora_KeepsTheGenerationSettingsOfItsBase) {
  fs::copy(base_, folder_ / "base");
  const std::string settings = "{\"eos_token_id\": 3}";
  std::ofstream(folder_ / "base/generation_config.json") << settings;
  TrainOptions o = options("adapters");
  o.model = folder_ / "base";
  o.steps = 1;
  cleave_train(o);
  fs::create_directory(folder_ / "peft");
  for (const char* name : {"adapter_config.json", "adapter_model.safetensors"}) {
    fs::copy(fs::path(o.out) / "step_00000001" / name, folder_ / "peft");
  }
  TrainOptions merged = options("merged");
  merged.model = folder_ / "peft";
  merged.lora = 0;
  merged.lora_targets.clear();
  merged.steps = 1;
  cleave_train(merged);
  EXPECT_EQ(read_file(fs::path(merged.out) / "step_00000001/generation_config.json"), settings);
}

TEST_F(LoraRuns, WrongOptions_AreRefusedByName) {
  TrainOptions o = options("refused");
  o.lora = 0;
  EXPECT_EQ(error_of(o),
            "2 --lora-alpha, --lora-targets, --lora-dropout, --lora-base, --rslora and --dora need "
            "--lora RANK; give it too");
  o = options("refused");
  o.lora = 1000;
  EXPECT_NE(error_of(o).find("LoRA rank 1000 does not fit"), std::string::npos) << error_of(o);
  o = options("refused");
  o.model = "llama-tiny";
  EXPECT_NE(error_of(o).find("has no weights; give a model folder"), std::string::npos);
  for (const std::string names : {"", ",", "q_proj,", "q_proj,,v_proj"}) {
    o = options("refused");
    o.lora_targets = {names};
    EXPECT_EQ(error_of(o), "2 --lora-targets '" + names +
                               "' has an empty name; give layers between commas, as in "
                               "q_proj,v_proj, or leave it out for all-linear");
  }
}

TEST_F(LoraRuns, OtherValuesOrBaseOnResume_AreRefused) {
  TrainOptions o = options("run");
  o.steps = 2;
  cleave_train(o);
  o.resume = true;
  o.steps = 3;
  o.lora_alpha = 3;
  EXPECT_EQ(error_of(o).substr(0, 2), "2 ");
  o.lora_alpha = 0;
  o.lora_targets = {"q_proj"};
  const std::string targets = error_of(o);
  EXPECT_EQ(targets.substr(0, 2), "4 ");
  EXPECT_NE(targets.find(" has adapters of other layers; give the same --lora-targets: "),
            std::string::npos)
      << targets;
  EXPECT_LT(targets.size(), 500U) << targets;  // two tensors are named, not all
  o = options("run");
  o.resume = true;
  for (const char* other : {"llama-gqa-tied", "gpt2"}) {
    o.model = test::golden_folder(other);
    EXPECT_EQ(error_of(o),
              str("4 ", o.model, " is not the model that the adapters in ", o.out,
                  "/step_00000002 were trained on: its config, its weights or its "
                  "manifest.json differ; give the whole folder of the original base model with "
                  "--model"));
  }
  o.model = folder_ / "moved";
  fs::copy(base_, folder_ / "moved", fs::copy_options::recursive);
  o.steps = 3;
  EXPECT_EQ(error_of(o), "");
}

TEST_F(LoraRuns, BaseOfTheHubCache_KeepsItsNameOnResume) {
  const fs::path model = folder_ / "models--org--base";
  fs::create_directories(model / "refs");
  fs::create_directories(model / "snapshots");
  std::ofstream(model / "refs/main") << "abc";
  fs::copy(base_, model / "snapshots/abc", fs::copy_options::recursive);
  const char* value = std::getenv("HF_HUB_CACHE");           // NOLINT(concurrency-mt-unsafe)
  const std::string before = value == nullptr ? "" : value;  // empty is not set
  ::setenv("HF_HUB_CACHE", folder_.path().c_str(), 1);       // NOLINT(concurrency-mt-unsafe)
  TrainOptions o = options("run");
  o.model = "org/base";
  o.steps = 1;
  EXPECT_EQ(error_of(o), "");
  o.resume = true;
  // The run itself may be given too.
  for (const std::string& given : {TrainOptions{}.model, o.out, o.out + "/step_00000003"}) {
    o.model = given;
    ++*o.steps;
    EXPECT_EQ(error_of(o), "") << given;
  }
  ::setenv("HF_HUB_CACHE", before.c_str(), 1);  // NOLINT(concurrency-mt-unsafe)
  for (const char* step : {"step_00000001", "step_00000002", "step_00000004"}) {
    const auto config =
        nlohmann::json::parse(read_file(o.out + "/" + step + "/adapter_config.json"));
    EXPECT_EQ(config["base_model_name_or_path"], "org/base") << step;
  }
}

TEST_F(LoraRuns, AdapterOfAnotherModelOrKind_IsOneLineWithExitCode4) {
  const auto refused = [&](const std::string& adapter) -> std::string {
    const ModelFolder folder = ModelFolder::open(base_, adapter);
    auto model = make_model(folder.config);
    try {
      load_model(*model, folder, at::kFloat);
    } catch (const Error& error) {
      return str(static_cast<int>(error.code()), ' ', error.what());
    }
    return "";
  };
  const std::string shapes = refused(adapter_folder("llama-6heads"));
  EXPECT_EQ(shapes.front(), '4') << shapes;
  EXPECT_NE(shapes.find("is not an adapter of this model"), std::string::npos) << shapes;
  EXPECT_EQ(shapes.find('\n'), std::string::npos);
  const std::string names = refused(adapter_folder("gpt2"));
  EXPECT_EQ(names.front(), '4') << names;
  EXPECT_NE(
      names.find("is not an adapter of this model: the model has no layer for base_model.model."),
      std::string::npos)
      << names;
  EXPECT_LT(names.size(), 250U) << names;  // one tensor is named, not all
  fs::copy(adapter_folder("llama-6heads"), folder_ / "other");
  auto config = nlohmann::json::parse(read_file(folder_ / "other" / "adapter_config.json"));
  config["use_qalora"] = true;
  std::ofstream(folder_ / "other" / "adapter_config.json") << config.dump();
  const std::string other = refused(folder_ / "other");
  EXPECT_EQ(other.front(), '4') << other;
  EXPECT_NE(other.find("\"use_qalora\""), std::string::npos) << other;
  // An adapter that names itself as its base.
  config["base_model_name_or_path"] = (folder_ / "other").string();
  std::ofstream(folder_ / "other" / "adapter_config.json") << config.dump();
  try {
    (void)ModelFolder::open(folder_ / "other");
    FAIL() << "an adapter of itself was opened";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kFormat);
    EXPECT_NE(std::string(error.what()).find("is an adapter itself"), std::string::npos);
  }
}

}  // namespace
}  // namespace cleave::lora_test
