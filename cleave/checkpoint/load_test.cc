// Oracle: tensors in closed form, in files that are made tensor by tensor.
#include "cleave/checkpoint/load.h"

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <malloc.h>
#include <map>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/checkpoint/model_tensors.h"
#include "cleave/checkpoint/names.h"
#include "cleave/format/manifest.h"
#include "cleave/parallel/flat_shards.h"
#include "cleave/torch_internals/memory_cache.h"
#include "tests/support/level.h"
#include "tests/support/memory.h"
#include "tests/support/saved_models.h"
#include "tests/support/temp_folder.h"
#include "tests/support/thrown.h"

namespace cleave::load_test {
namespace {

namespace fs = std::filesystem;
using test::closed_form;
using test::kLlamaConfig;
using test::Layout;
using test::on_layout;
using test::TempFolder;
using test::tensors_of;
using test::thrown_by;
using test::Training;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

// -- leaves sharded over data-parallel ranks ------------------------------------------------------

/// The part of a tensor in closed form that a flat leaf, or its moment, has.
Tensor flat_part_of(const Parameter& p, const std::string& prefix) {
  const Tensor local = Training::part_of(p, prefix).flatten();
  return local.slice(0, p.flat_range().begin, p.flat_range().end).view(p.leaf_shape());
}

/// A model and its optimizer, whose leaves are sharded over `dp` as FSDP does.
struct FlatTraining : Training {
  explicit FlatTraining(const Writers& writers) : Training(writers.tp) {
    const FlatShards shards(model->parameters(), writers.dp);
    optimizer = std::make_unique<Optimizer>(model->parameters(), OptimizerOptions{});
  }
  void fill() {
    for (const auto& state : optimizer->states()) {
      state.exp_avg.detach().copy_(flat_part_of(*state.parameter, "exp_avg."));
      state.exp_avg_sq.detach().copy_(flat_part_of(*state.parameter, "exp_avg_sq."));
    }
    optimizer->set_num_steps(7);
  }
};

// 3 ranks divide neither the elements of the model nor those of most tensors: leaves begin and end
// inside rows, and some are empty.
TEST(FlatLeaves, OfEveryLayout_AreSavedWholeAndReadOnEveryOther) {
  const std::vector<Layout> layouts = {{1, 1}, {1, 3}, {2, 2}, {3, 2}};
  for (const Layout& from : layouts) {
    SCOPED_TRACE(str("saved at tp=", from.tp, " dp=", from.dp));
    const TempFolder folder;
    on_layout(from, [&](const Writers& writers) {
      FlatTraining training(writers);
      training.fill();
      RunFolder(folder / "run", writers).save(training.checkpoint(1));
    });
    const fs::path saved = folder / "run/step_00000001";
    EXPECT_THAT(find_damage(saved), IsEmpty());
    test::expect_file_is_whole(saved / "model.safetensors", 3 + 2 * 9);
    test::expect_file_is_whole(saved / "optimizer.safetensors", 2 * (3 + 2 * 9));
    for (const Layout& to : layouts) {
      SCOPED_TRACE(str("loaded at tp=", to.tp, " dp=", to.dp));
      on_layout(to, [&](const Writers& writers) {
        const FlatTraining training(writers);
        for (const auto& p : training.model->parameters()) p->leaf().detach().zero_();
        load_model(*training.model, ModelFolder::open(saved.string()), at::kFloat);
        load_optimizer(*training.optimizer, *training.model, (folder / "run").string());
        for (const auto& state : training.optimizer->states()) {
          const Parameter& p = *state.parameter;
          EXPECT_TRUE(at::equal(p.leaf(), flat_part_of(p, ""))) << p.name();
          EXPECT_TRUE(at::equal(state.exp_avg, flat_part_of(p, "exp_avg."))) << p.name();
          EXPECT_TRUE(at::equal(state.exp_avg_sq, flat_part_of(p, "exp_avg_sq."))) << p.name();
        }
      });
    }
  }
}

// -- weights without a model's folder -------------------------------------------------------------

std::unique_ptr<TensorSource> files_with(const TempFolder& folder,
                                         const std::vector<TensorInfo>& tensors) {
  test::write_model_folder(folder / "m", kLlamaConfig, tensors);
  return open_tensors(folder / "m");
}

TEST(LoadWeights, OfEveryName_FillTheRanksParts) {
  const TempFolder folder;
  const auto files = files_with(folder, tensors_of(kLlamaConfig));
  on_layout({3, 1}, [&](const Writers& writers) {
    const Training training(writers.tp);
    for (const auto& p : training.model->parameters()) p->leaf().detach().zero_();
    const auto elsewhere = training.model->parameters().front();
    elsewhere->set_ownership(Parameter::Ownership::kNotOwned);  // of another pipeline stage
    load_weights(training.model->parameters(), *files);
    for (const auto& p : training.model->parameters()) {
      const Tensor want = Training::part_of(*p, "");
      EXPECT_TRUE(at::equal(p->leaf(), p == elsewhere ? at::zeros_like(want) : want)) << p->name();
    }
  });
}

TEST(LoadWeights, ThatDoNotFit_AreRefusedAndNothingIsChanged) {
  const auto error_with = [](const std::vector<TensorInfo>& tensors) {
    const TempFolder folder;
    const auto files = files_with(folder, tensors);
    const Training training{Axis()};
    for (const auto& p : training.model->parameters()) p->leaf().detach().fill_(3);
    const Error error = thrown_by([&] { load_weights(training.model->parameters(), *files); });
    for (const auto& p : training.model->parameters()) {
      EXPECT_TRUE(at::equal(p->leaf(), at::full_like(p->leaf(), 3))) << p->name();
    }
    return error;
  };
  auto tensors = tensors_of(kLlamaConfig);
  tensors.back().shape[0] += 1;
  const Error shape = error_with(tensors);
  EXPECT_EQ(shape.code(), Code::kShape);
  EXPECT_THAT(shape.what(), HasSubstr(tensors.back().name + ": the file has shape ["));

  tensors = tensors_of(kLlamaConfig);
  tensors[1].name = "other.weight";
  const Error name = error_with(tensors);
  EXPECT_EQ(name.code(), Code::kFormat);
  EXPECT_THAT(name.what(),
              HasSubstr("does not fit the model: 1 missing: " + tensors_of(kLlamaConfig)[1].name +
                        "; 1 that the model does not use: other.weight"));
}

TEST(LoadModel, ManyMissingTensors_AreCountedAndTwentyNamed) {
  const TempFolder folder;
  test::write_model_folder(folder / "m", kLlamaConfig, {{"x", DType::kF32, {1}}});
  const auto model = make_model(Json::parse(kLlamaConfig, "config.json"));
  const Error error = thrown_by(
      [&] { load_model(*model, ModelFolder::open((folder / "m").string()), at::kFloat); });
  const std::string text = error.what();
  EXPECT_THAT(text, AllOf(HasSubstr("21 missing: lm_head.weight, "),
                          HasSubstr(" and 1 more; 1 that the model does not use: x")));
  EXPECT_EQ(std::count(text.begin(), text.end(), ','), 19) << text;
}

TEST(LoadModel, ParameterOfIntegers_IsRefused) {
  const TempFolder folder;
  auto tensors = tensors_of(kLlamaConfig);
  tensors[2].dtype = DType::kI32;
  test::write_model_folder(folder / "m", kLlamaConfig, tensors);
  const auto model = make_model(Json::parse(kLlamaConfig, "config.json"));
  const Error error = thrown_by(
      [&] { load_model(*model, ModelFolder::open((folder / "m").string()), at::kFloat); });
  EXPECT_EQ(error.code(), Code::kFormat);
  EXPECT_STREQ(error.what(), str("tensor '", tensors[2].name,
                                 "' has dtype I32; a parameter needs F32, F64, BF16 or F16")
                                 .c_str());
}

// Oracle: the same model's file with rows in the order of transformers.
TEST(RealMetaTensors, BlocksOfRowsAndColumns_AreThoseOfTheOrderedRows) {
  CLEAVE_NEEDS_DATA();
  const std::string models = test::data_folder() + "/models/";
  const auto files = open_whole_tensors(ModelFolder::open(models + "stories260K-meta"));
  EXPECT_THAT(files->path(), HasSubstr("stories260K-meta"));
  EXPECT_THAT(files->file_names(), testing::ElementsAre("consolidated.safetensors"));
  for (const char* name :
       {"model.layers.0.self_attn.q_proj.weight", "model.layers.4.self_attn.k_proj.weight"}) {
    const Tensor whole = test::read_tensors(models + "stories260K").at(name);
    const std::vector<Slice> slices = {{1, {{5, 9}}}, {0, {{3, 9}, {9, 10}, {31, 32}}}};
    const Tensor want = at::cat({whole.narrow(0, 3, 7), whole.narrow(0, 31, 1)}).narrow(1, 5, 4);
    Tensor got = at::empty({8, 4});
    files->read_block(name, slices,
                      {static_cast<std::byte*>(got.mutable_data_ptr()), got.nbytes()});
    EXPECT_TRUE(at::equal(got, want)) << name;
    const std::vector<Slice> none = {{0, {{3, 3}}}};
    EXPECT_NO_THROW(files->read_block(name, none, {}));
    std::vector<std::byte> memory(4);
    const Error error = thrown_by([&] { files->read_block(name, {}, memory); });
    EXPECT_EQ(error.code(), Code::kUsage);
    EXPECT_THAT(error.what(), HasSubstr("the memory for it 4"));
  }
}

// -- the optimizer's files ------------------------------------------------------------------------

/// The files of an AdamW of the small Llama, except for what a test changes.
struct OptimizerFiles {
  OptimizerFiles() {
    for (const TensorInfo& info : tensors_of(kLlamaConfig)) {
      for (const char* part : {"exp_avg", "exp_avg_sq"}) {
        tensors.push_back({state_name(part, info.name), info.dtype, info.shape});
      }
    }
  }
  std::vector<TensorInfo> tensors;
  std::map<std::string, std::string> metadata = {{std::string(kNumSteps), "7"}};

  /// The step count that an AdamW reads from them.
  [[nodiscard]] int64_t load() const {
    const TempFolder folder;
    FolderWriter to(folder / "o");
    const SafetensorsPlan plan(tensors,
                               {.stem = std::string(kOptimizerStem), .metadata = metadata});
    plan.create_files(to);  // all zeros
    to.commit();
    const Training training{Axis()};
    Optimizer optimizer(training.model->parameters(), {});
    load_optimizer(optimizer, *training.model, (folder / "o").string());
    return optimizer.num_steps();
  }
};

TEST(LoadOptimizer, TensorsThatDoNotFit_AreRefused) {
  OptimizerFiles files;
  EXPECT_EQ(files.load(), 7);
  files.tensors[3].shape[0] -= 1;
  const Error shape = thrown_by([&] { (void)files.load(); });
  EXPECT_EQ(shape.code(), Code::kShape);
  EXPECT_THAT(shape.what(),
              AllOf(HasSubstr(files.tensors[3].name), HasSubstr("; the model needs [")));

  files = {};
  const std::string gone = files.tensors[4].name;
  files.tensors.erase(files.tensors.begin() + 4);
  const Error missing = thrown_by([&] { (void)files.load(); });
  EXPECT_EQ(missing.code(), Code::kFormat);
  EXPECT_THAT(missing.what(), HasSubstr("the optimizer's files have no " + gone + "; they are of"));

  files = {};
  files.tensors.push_back({"exp_avg.other", DType::kF32, {2}});
  const Error more = thrown_by([&] { (void)files.load(); });
  EXPECT_EQ(more.code(), Code::kFormat);
  EXPECT_THAT(more.what(),
              HasSubstr("have 43 tensors; this optimizer needs 42; they are of another"));
}

TEST(LoadOptimizer, InvalidNumberOfSteps_IsRefused) {
  OptimizerFiles files;
  files.metadata[std::string(kNumSteps)] = "999999999999999999";
  EXPECT_EQ(files.load(), 999'999'999'999'999'999);
  for (const char* steps : {"", "-1", "7 ", "0x7", "1000000000000000000"}) {
    files.metadata[std::string(kNumSteps)] = steps;
    const Error error = thrown_by([&] { (void)files.load(); });
    EXPECT_EQ(error.code(), Code::kFormat) << steps;
    EXPECT_THAT(error.what(), HasSubstr("have no valid num_steps")) << steps;
  }
  files.metadata = {{"format", "pt"}};
  EXPECT_THAT(thrown_by([&] { (void)files.load(); }).what(), HasSubstr("have no valid num_steps"));
}

// Row C6. 84 MB of weights, the largest 8 MB.
constexpr std::string_view kLargeConfig =
    R"({"architectures":["LlamaForCausalLM"],"model_type":"llama",
  "vocab_size":4096,"hidden_size":512,"intermediate_size":2048,"num_hidden_layers":4,
  "num_attention_heads":8,"max_position_embeddings":64,"torch_dtype":"float32"})";

class LoadMemory : public testing::TestWithParam<std::pair<int, at::ScalarType>> {};

TEST_P(LoadMemory, IsThatOfTheShardAndOneTensor) {
  if (test::kIsInstrumented) GTEST_SKIP() << "sanitizers keep freed memory";
  const auto [tp, type] = GetParam();
  const TempFolder folder;
  test::write_model_folder(folder / "model", kLargeConfig, tensors_of(kLargeConfig));
  use_memory_cache();  // as every run does
  ::malloc_trim(0);
  if (!test::reset_peak()) GTEST_SKIP() << "this kernel keeps the peak of memory";
  const uint64_t before = test::resident_bytes("VmRSS");
  std::atomic<uint64_t> weights = 0, others = 0;  // of all ranks, which are threads here
  on_layout({tp, 1}, [&, type = type](const Writers& writers) {
    const auto model = make_model(Json::parse(kLargeConfig, "config.json"));
    parallelize_module(*model, writers.tp, model->plan());
    load_model(*model, ModelFolder::open(folder / "model"), type);
    uint64_t largest = 0;
    for (const auto& p : model->parameters()) {
      weights += p->leaf().nbytes();
      largest = std::max(largest, sizeof(float) * static_cast<uint64_t>(p->leaf().numel()));
    }
    others += largest;
    writers.world.barrier("all are loaded");
  });
  const uint64_t peak = test::resident_bytes("VmHWM");
  // A stack, a heap and headers for each rank, and the same once for the process.
  const uint64_t rest = static_cast<uint64_t>(tp + 1) << 21;
  EXPECT_LE(peak, before + weights + others + rest);
  EXPECT_GT(weights.load(), uint64_t{38} << 20) << "all weights are in memory at the same time";
  test::note_measured("C6 ", tp, " ranks, ", c10::toString(type), ": ", (peak - before) >> 20,
                      " MiB for weights of ", weights.load() >> 20, " and ", others.load() >> 20,
                      " of one tensor a rank");
}

INSTANTIATE_TEST_SUITE_P(Layouts, LoadMemory,
                         testing::Values(std::pair{1, at::kFloat}, std::pair{2, at::kFloat},
                                         std::pair{1, at::kBFloat16}, std::pair{2, at::kBFloat16},
                                         std::pair{4, at::kBFloat16}),
                         [](const auto& of) {
                           return str("Tp", of.param.first, c10::toString(of.param.second));
                         });

}  // namespace
}  // namespace cleave::load_test
