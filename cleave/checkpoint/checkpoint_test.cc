// Oracle: whole tensors in closed form. They are cut onto one layout, saved, and read back whole by
// name, and cut again onto every other layout.
#include <array>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <map>
#include <mutex>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/base/hash.h"
#include "cleave/checkpoint/names.h"
#include "cleave/checkpoint/run_folder.h"
#include "cleave/comm/world.h"
#include "cleave/file/atomic_write.h"
#include "cleave/file/fault_hook.h"
#include "cleave/format/manifest.h"
#include "cleave/mesh/mesh.h"
#include "tests/support/golden.h"
#include "tests/support/temp_folder.h"
#include "tests/support/thrown.h"

namespace cleave {
namespace {

namespace fs = std::filesystem;
using test::TempFolder;
using test::thrown_by;
using testing::HasSubstr;
using testing::IsEmpty;

// 6 heads over 2 key-value heads: on 3 ranks two of them share one; 50 rows divide by no 3.
constexpr std::string_view kConfig = R"({"architectures":["LlamaForCausalLM"],"model_type":"llama",
  "vocab_size":50,"hidden_size":24,"intermediate_size":20,"num_hidden_layers":2,
  "num_attention_heads":6,"num_key_value_heads":2,"head_dim":4,"max_position_embeddings":64,
  "rms_norm_eps":1e-5,"hidden_act":"silu","tie_word_embeddings":false,"bos_token_id":1,
  "eos_token_id":2,"rope_theta":10000.0,"torch_dtype":"float32"})";

// 6 heads in one matrix of queries, keys and values: a rank's columns of it are three ranges, and
// on 4 ranks they are uneven.
constexpr std::string_view kGpt2Config = R"({"architectures":["GPT2LMHeadModel"],
  "model_type":"gpt2","vocab_size":50,"n_embd":24,"n_layer":2,"n_head":6,"n_inner":20,
  "n_positions":16,"torch_dtype":"float32"})";

struct Layout {
  int tp, dp;
};
constexpr std::array kLayouts = {Layout{1, 1}, Layout{2, 1}, Layout{3, 1},
                                 Layout{4, 1}, Layout{1, 2}, Layout{2, 2}};

/// Values that differ by tensor and place and that bf16 holds exactly.
Tensor closed_form(const std::string& name, const std::vector<int64_t>& shape) {
  const auto start = static_cast<int64_t>(hash_bytes(name) % 251);
  Tensor t = at::arange(start, start + c10::multiply_integers(shape), at::kLong);
  return t.mul(37).remainder(251).sub(125).to(at::kFloat).div(64).reshape(shape);
}

void on_ranks(const Layout& layout, const std::function<void(const Writers&)>& body) {
  run_ranks(layout.tp * layout.dp, [&](World& world) {
    const Mesh mesh = Mesh::build(world, {{"dp", layout.dp}, {"tp", layout.tp}});
    std::vector<int> all;
    for (int r = 0; r < world.size(); ++r) all.push_back(r);
    body({.world = Axis(world.group(all, "world")), .tp = mesh["tp"], .dp = mesh["dp"]});
  });
}

/// A model and its optimizer on one rank; every tensor of both from closed_form.
struct Training {
  explicit Training(const Axis& tp, at::ScalarType type = at::kFloat,
                    std::string_view config = kConfig)
      : model(make_model(Json::parse(config, "config.json"))) {
    parallelize_module(*model, tp, model->plan());
    model->name_tree();
    for (const auto& p : model->parameters()) p->set_leaf(part_of(*p, "").to(type));
    optimizer = std::make_unique<Optimizer>(model->parameters(), OptimizerOptions{});
    for (const auto& state : optimizer->states()) {
      state.exp_avg.detach().copy_(part_of(*state.parameter, "exp_avg."));
      state.exp_avg_sq.detach().copy_(part_of(*state.parameter, "exp_avg_sq."));
    }
    optimizer->set_num_steps(7);
  }

  static Tensor part_of(const Parameter& p, const std::string& prefix) {
    return test::slice_of(p, closed_form(prefix + p.name(), p.shape())).clone();
  }

  Checkpoint checkpoint(int64_t step) const {
    Checkpoint c;
    c.step = step;
    c.model = model.get();
    c.optimizer = optimizer.get();
    c.state_json = str("{\"step\":", step, "}\n");
    c.files = {{"tokenizer.json", "{}"}};
    return c;
  }

  std::unique_ptr<Model> model;
  std::unique_ptr<Optimizer> optimizer;
};

void expect_file_is_whole(const fs::path& path, size_t num_tensors) {
  const auto tensors = test::read_tensors(path);
  EXPECT_EQ(tensors.size(), num_tensors);
  for (const auto& [name, tensor] : tensors) {
    const Tensor want = closed_form(name, tensor.sizes().vec());
    EXPECT_TRUE(at::equal(tensor.to(at::kFloat), want)) << name;
  }
}

/// Loads a run's model and optimizer and compares each slice with its closed form.
void expect_loads(const fs::path& run, const Axis& tp) {
  auto model = make_model(Json::parse_file((*newest_checkpoint(run) / "config.json").string()));
  parallelize_module(*model, tp, model->plan());
  const LoadResult result = load_model(*model, ModelFolder::open(run.string()), at::kFloat);
  uint64_t held = 0;
  for (const auto& p : model->parameters()) held += p->leaf().nbytes();
  EXPECT_EQ(result.bytes_read, held) << "a rank reads its own ranges alone";
  Optimizer optimizer(model->parameters(), OptimizerOptions{});
  load_optimizer(optimizer, *model, newest_checkpoint(run)->string());
  EXPECT_EQ(optimizer.num_steps(), 7);
  for (const auto& state : optimizer.states()) {
    const Parameter& p = *state.parameter;
    EXPECT_TRUE(at::equal(p.leaf(), Training::part_of(p, ""))) << p.name();
    EXPECT_TRUE(at::equal(state.exp_avg, Training::part_of(p, "exp_avg."))) << p.name();
    EXPECT_TRUE(at::equal(state.exp_avg_sq, Training::part_of(p, "exp_avg_sq."))) << p.name();
  }
}

/// Saves a model of `num_tensors` on every layout and loads it on every layout.
void expect_every_layout_to_every_layout(std::string_view config, size_t num_tensors) {
  for (const Layout& from : kLayouts) {
    SCOPED_TRACE(str("saved at tp=", from.tp, " dp=", from.dp));
    const TempFolder folder;
    on_ranks(from, [&](const Writers& writers) {
      RunFolder run(folder / "run", writers);
      EXPECT_EQ(run.save(Training(writers.tp, at::kFloat, config).checkpoint(200)),
                folder / "run/step_00000200");
    });
    const fs::path saved = folder / "run/step_00000200";
    EXPECT_EQ(read_file(folder / "run/latest"), "step_00000200\n");
    EXPECT_THAT(find_damage(saved), IsEmpty());
    expect_file_is_whole(saved / "model.safetensors", num_tensors);
    expect_file_is_whole(saved / "optimizer.safetensors", 2 * num_tensors);
    EXPECT_EQ(read_file(saved / "state.json"), "{\"step\":200}\n");
    EXPECT_EQ(read_file(saved / "tokenizer.json"), "{}");
    for (const Layout& to : kLayouts) {
      SCOPED_TRACE(str("loaded at tp=", to.tp, " dp=", to.dp));
      on_ranks(to, [&](const Writers& writers) {
        verify_checkpoint(saved, writers.world);
        expect_loads(folder / "run", writers.tp);
      });
    }
  }
}

TEST(Checkpoint, EveryLayoutToEveryLayout_IsBitEqual) {
  expect_every_layout_to_every_layout(kConfig, 3 + 2 * 9);
}

TEST(Checkpoint, FusedColumnsOnEveryLayout_AreBitEqual) {
  expect_every_layout_to_every_layout(kGpt2Config, 4 + 2 * 12);
}

TEST(Checkpoint, NarrowTraining_HasBf16WeightsAndFp32Masters) {
  const TempFolder folder;
  on_ranks({2, 1}, [&](const Writers& writers) {
    Training training(writers.tp);
    for (const auto& p : training.model->parameters()) p->leaf().detach().add_(1.0f / 4096);
    Checkpoint checkpoint = training.checkpoint(5);
    checkpoint.dtype = at::kBFloat16;
    RunFolder(folder / "run", writers).save(checkpoint);
  });
  const fs::path saved = folder / "run/step_00000005";
  EXPECT_EQ(Json::parse_file((saved / "config.json").string()).at("torch_dtype").as_string(),
            "bfloat16");
  const auto weights = test::read_tensors(saved / "model.safetensors");
  const auto states = test::read_tensors(saved / "optimizer.safetensors");
  for (const auto& [name, weight] : weights) {
    const Tensor master = closed_form(name, weight.sizes().vec()).add(1.0f / 4096);
    EXPECT_EQ(weight.scalar_type(), at::kBFloat16);
    EXPECT_TRUE(at::equal(weight, master.to(at::kBFloat16))) << name;
    EXPECT_TRUE(at::equal(states.at("master." + name), master)) << name;
  }
  on_ranks({3, 1}, [&](const Writers& writers) {
    auto model = make_model(Json::parse(kConfig, "config.json"));
    parallelize_module(*model, writers.tp, model->plan());
    load_model(*model, ModelFolder::open((folder / "run").string()), at::kFloat);
    Optimizer optimizer(model->parameters(), OptimizerOptions{});
    load_optimizer(optimizer, *model, saved.string());
    for (const auto& p : model->parameters()) {
      EXPECT_TRUE(at::equal(p->leaf(), Training::part_of(*p, "").add(1.0f / 4096))) << p->name();
    }
  });
}

TEST(Checkpoint, TiedWeights_AreStoredOnceAndADuplicateIsNoError) {
  std::string config(kConfig);
  config.replace(config.find("\"tie_word_embeddings\":false"), 27, "\"tie_word_embeddings\":true ");
  const TempFolder folder;
  const Axis one;
  const Writers writers{one, one, one};
  const Training training(one, at::kFloat, config);
  const fs::path saved = RunFolder(folder / "run", writers).save(training.checkpoint(1));
  const auto tensors = test::read_tensors(saved / "model.safetensors");
  EXPECT_EQ(tensors.size(), 2u + 2 * 9);
  EXPECT_FALSE(tensors.contains("lm_head.weight"));
  auto model = make_model(Json::parse(config, "config.json"));
  EXPECT_THAT(load_model(*model, ModelFolder::open(saved.string()), at::kFloat).carried, IsEmpty());
}

// -- what does not fit ----------------------------------------------------------------------------

/// A model folder of one file with these tensors, values in closed form.
void write_model_folder(const fs::path& path, std::string_view config,
                        const std::vector<TensorInfo>& tensors) {
  FolderWriter folder(path);
  const SafetensorsPlan plan(tensors);
  plan.create_files(folder);
  SafetensorsWriter writer(folder.path(), plan);
  for (const TensorInfo& tensor : tensors) {
    const Tensor values = closed_form(tensor.name, tensor.shape);
    writer.write_block(tensor.name, {},
                       {static_cast<const std::byte*>(values.const_data_ptr()), values.nbytes()});
  }
  writer.finish();
  folder.write_file("config.json", config);
  folder.commit();
}

std::vector<TensorInfo> tensors_of_model() {
  const Training training{Axis()};
  std::vector<TensorInfo> tensors;
  for (const auto& p : training.model->parameters()) {
    tensors.push_back({p->name(), DType::kF32, p->shape()});
  }
  return tensors;
}

Error load_error(const std::vector<TensorInfo>& tensors) {
  const TempFolder folder;
  write_model_folder(folder / "m", kConfig, tensors);
  auto model = make_model(Json::parse(kConfig, "config.json"));
  return thrown_by(
      [&] { load_model(*model, ModelFolder::open((folder / "m").string()), at::kFloat); });
}

TEST(LoadModel, MissingAndUnexpectedTensors_AreAllListed) {
  auto tensors = tensors_of_model();
  tensors[0].name = "model.embed.weight";
  tensors[1].name = "other.bias";
  const Error error = load_error(tensors);
  EXPECT_EQ(error.code(), Code::kFormat);
  EXPECT_THAT(error.what(), HasSubstr("2 missing: model.embed_tokens.weight, model.layers.0."));
  EXPECT_THAT(error.what(),
              HasSubstr("2 that the model has no use for: model.embed.weight, other"));
}

// The files that GPT-2 was published with: a base model's names, causal masks as tensors; and the
// output matrix once more, as other programs write it.
TEST(LoadModel, NamesWithoutTheirFirstToken_AreFoundAndMasksLeftOut) {
  const Training training(Axis(), at::kFloat, kGpt2Config);
  std::vector<TensorInfo> tensors;
  for (const auto& p : training.model->parameters()) {
    tensors.push_back({p->name().substr(sizeof("transformer")), DType::kF32, p->shape()});
  }
  tensors.push_back({"h.0.attn.bias", DType::kF32, {1, 1, 16, 16}});
  tensors.push_back({"h.0.attn.masked_bias", DType::kF32, {}});
  tensors.push_back({"lm_head.weight", DType::kF32, {50, 24}});
  const TempFolder folder;
  write_model_folder(folder / "m", kGpt2Config, tensors);
  on_ranks({4, 1}, [&](const Writers& writers) {
    auto model = make_model(Json::parse(kGpt2Config, "config.json"));
    parallelize_module(*model, writers.tp, model->plan());
    const auto opened = ModelFolder::open((folder / "m").string());
    EXPECT_THAT(load_model(*model, opened, at::kFloat).carried, IsEmpty());
    for (const auto& p : model->parameters()) {
      const std::string stored = p->name().substr(sizeof("transformer"));
      EXPECT_TRUE(at::equal(p->leaf(), test::slice_of(*p, closed_form(stored, p->shape()))))
          << p->name();
    }
  });
}

TEST(LoadModel, OtherShape_NamesBoth) {
  auto tensors = tensors_of_model();
  tensors[0].shape = {51, 24};
  const Error error = load_error(tensors);
  EXPECT_EQ(error.code(), Code::kShape);
  EXPECT_THAT(error.what(), HasSubstr("the file has shape [51, 24]; the model needs [50, 24]"));
}

TEST(LoadModel, TablesOfOlderPrograms_AreCarriedIntoTheNextCheckpoint) {
  const TempFolder folder;
  auto tensors = tensors_of_model();
  tensors.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", DType::kF32, {2}});
  write_model_folder(folder / "m", kConfig, tensors);
  on_ranks({2, 1}, [&](const Writers& writers) {
    Training training(writers.tp);
    auto model = make_model(Json::parse(kConfig, "config.json"));
    parallelize_module(*model, writers.tp, model->plan());
    Checkpoint checkpoint = training.checkpoint(3);
    checkpoint.carried =
        load_model(*model, ModelFolder::open((folder / "m").string()), at::kFloat).carried;
    EXPECT_EQ(checkpoint.carried.size(), 1u);
    RunFolder(folder / "run", writers).save(checkpoint);
  });
  expect_file_is_whole(folder / "run/step_00000003/model.safetensors", tensors.size());
  EXPECT_THAT(find_damage(folder / "run/step_00000003"), IsEmpty());
}

TEST(LoadOptimizer, OtherOptimizer_IsRefused) {
  const TempFolder folder;
  const Axis one;
  Training training(one);
  const fs::path saved = RunFolder(folder / "run", {one, one, one}).save(training.checkpoint(1));
  OptimizerOptions sgd;
  sgd.kind = OptimizerOptions::Kind::kSgd;
  Optimizer other(training.model->parameters(), sgd);
  EXPECT_THAT(thrown_by([&] { load_optimizer(other, *training.model, saved.string()); }).what(),
              HasSubstr("they are of another optimizer"));
  fs::remove(saved / "optimizer.safetensors");
  EXPECT_EQ(thrown_by([&] {
              load_optimizer(*training.optimizer, *training.model, saved.string());
            }).code(),
            Code::kIo);
}

// Meta's rows 2i, 2i+1 of a head are rows i, i + half here: written by that rule, one by one.
TEST(LoadModel, MetaNames_UndoTheOrderOfRotaryRowsOnEveryLayout) {
  const auto data = test::data_folder();
  CLEAVE_NEEDS_DATA();
  const auto want = test::read_tensors(data + "/models/stories260K");
  for (const Layout& layout : {Layout{1, 1}, Layout{2, 1}, Layout{3, 1}}) {
    on_ranks(layout, [&](const Writers& writers) {
      const ModelFolder folder = ModelFolder::open(data + "/models/stories260K-meta");
      auto model = make_model(folder.config);
      parallelize_module(*model, writers.tp, model->plan());
      load_model(*model, folder, at::kFloat);
      for (const auto& p : model->parameters()) {
        const auto at =
            want.find(p->name() == "lm_head.weight" ? "model.embed_tokens.weight" : p->name());
        ASSERT_NE(at, want.end()) << p->name();
        EXPECT_TRUE(at::equal(p->leaf(), test::slice_of(*p, at->second))) << p->name();
      }
    });
  }
}

// -- the run folder -------------------------------------------------------------------------------

std::vector<std::string> names_in(const fs::path& run) {
  std::vector<std::string> names;
  for (const fs::path& folder : list_checkpoints(run)) names.push_back(folder.filename());
  return names;
}

TEST(RunFolder, KeepLast_RemovesTheOldestAfterTheNewWasVerified) {
  const TempFolder folder;
  on_ranks({2, 1}, [&](const Writers& writers) {
    RunFolder run(folder.path(), writers, 2);
    const Training training(writers.tp);
    for (const int64_t step : {9, 10, 11, 100}) run.save(training.checkpoint(step));
  });
  EXPECT_THAT(names_in(folder.path()), testing::ElementsAre("step_00000011", "step_00000100"));
  EXPECT_EQ(newest_checkpoint(folder.path()), folder / "step_00000100");
}

TEST(RunFolder, DamagedNewCheckpoint_RemovesNothing) {
  const TempFolder folder;
  const Axis one;
  RunFolder run(folder.path(), {one, one, one}, 1);
  const Training training(one);
  run.save(training.checkpoint(1));
  bool damaged = false;
  const ScopedFileHook hook([&](FileCall call, const std::string& path) {
    // The disk changes a byte after everything was written, before it is read back.
    if (call == FileCall::kRename && path.ends_with("latest") && !damaged) {
      damaged = true;
      std::FILE* file = std::fopen((folder / "step_00000002/model.safetensors").c_str(), "r+b");
      std::fseek(file, -1, SEEK_END);
      std::fputc('x', file);
      std::fclose(file);
    }
    return 0;
  });
  EXPECT_THAT(thrown_by([&] { run.save(training.checkpoint(2)); }).what(), HasSubstr("lm_head"));
  EXPECT_TRUE(damaged);
  EXPECT_THAT(find_damage(folder / "step_00000001"), IsEmpty());
}

TEST(RunFolder, SameStepAgain_IsNotWrittenAgain) {
  const TempFolder folder;
  const Axis one;
  const Training training(one);
  RunFolder run(folder.path(), {one, one, one});
  const fs::path saved = run.save(training.checkpoint(4));
  const auto written = fs::last_write_time(saved / "manifest.json");
  EXPECT_EQ(run.save(training.checkpoint(4)), saved);
  EXPECT_EQ(fs::last_write_time(saved / "manifest.json"), written);
}

TEST(RunFolder, WriterThatDiedBeforeNamingItsCheckpoint_IsRepairedAtTheNextStart) {
  const TempFolder folder;
  const Axis one;
  const Training training(one);
  {
    RunFolder run(folder.path(), {one, one, one});
    run.save(training.checkpoint(4));
    run.save(training.checkpoint(8));
  }
  write_atomic(folder / "latest", "step_00000004\n");
  fs::create_directory(folder / "step_00000012.partial");
  EXPECT_EQ(newest_checkpoint(folder.path()), folder / "step_00000004");
  const RunFolder again(folder.path(), {one, one, one});
  EXPECT_EQ(newest_checkpoint(folder.path()), folder / "step_00000008");
  EXPECT_FALSE(fs::exists(folder / "step_00000012.partial"));
  EXPECT_THAT(thrown_by([&] {
                RunFolder(folder.path(), {one, one, one});
              }).what(),
              HasSubstr("is being written by pid"));
}

TEST(RunFolder, LatestThatIsAPath_IsRefused) {
  const TempFolder folder;
  for (const std::string_view name :
       {"../step_00000001", "/etc", "", "step_1", "step_00000001/x"}) {
    write_atomic(folder / "latest", name);
    EXPECT_EQ(thrown_by([&] { newest_checkpoint(folder.path()); }).code(), Code::kFormat) << name;
  }
}

// Every rank's every call in turn; the threads race, so which call fails differs between runs.
TEST(RunFolder, FailureAtEveryFileCallOfFourRanks_LeavesAWholeCheckpoint) {
  const TempFolder folder;
  int64_t step = 1;
  int num_calls = 0;
  for (int failing = 0; failing == 0 || failing <= num_calls; failing += failing < 20 ? 1 : 19) {
    ++step;
    std::atomic<int> calls = 0;
    std::string message;
    {
      const ScopedFileHook hook(
          [&](FileCall, const std::string&) { return ++calls == failing ? ENOSPC : 0; });
      try {
        on_ranks({2, 2}, [&](const Writers& writers) {
          RunFolder run(folder.path(), writers, 2);
          run.save(Training(writers.tp).checkpoint(step));
        });
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), Code::kIo) << error.what();
        message = error.what();
      }
    }
    if (failing == 0) num_calls = calls;
    EXPECT_THAT(message, HasSubstr(failing == 0 ? "" : "No space left on device"))
        << "call " << failing;
    const auto newest = newest_checkpoint(folder.path());
    ASSERT_TRUE(newest);
    EXPECT_THAT(find_damage(*newest), IsEmpty());
    expect_file_is_whole(*newest / "model.safetensors", 21);
  }
  EXPECT_GT(num_calls, 100);
}

}  // namespace
}  // namespace cleave
