// Oracle: whole weights as a function of name and position, sharded in the test or read back on
// another layout; the folder after a failed save is compared bit for bit.
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <set>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/base/hash.h"
#include "cleave/checkpoint/parts.h"
#include "cleave/file/fault_hook.h"
#include "cleave/format/manifest.h"
#include "cleave/format/tensor_source.h"
#include "cleave/format/torch_file.h"
#include "cleave/parallel/fsdp.h"
#include "cleave/parallel/zero1.h"
#include "tests/support/oslo_models.h"
#include "tests/support/small_disk.h"
#include "tests/support/temp_folder.h"
#include "tests/support/thrown.h"

namespace cleave::oslo::oslo_save_test {
namespace {

namespace fs = std::filesystem;
using test::config_of;
using test::on_world;
using test::small_gpt2;
using test::TempFolder;
using test::thrown_by;
using testing::AllOf;
using testing::AnyOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

/// A whole tensor; its values differ by version, name and position.
Tensor closed_form(int version, const std::string& name, const std::vector<int64_t>& shape) {
  const auto start = static_cast<int64_t>(hash_bytes(str(version, name)) % 251);
  const Tensor t = at::arange(start, start + c10::multiply_integers(shape), at::kLong);
  return t.mul(37).remainder(251).sub(125).to(at::kFloat).div(64).reshape(shape);
}

/// A model on `tp` ranks of the world; 0: without memory.
ParallelModel model_of(World& world, int tp, int version) {
  ParallelModel model = initialize(small_gpt2(), config_of(tp), world);
  for (const auto& p : model.parameters()) {
    if (version > 0) p->set_leaf(p->part_of(closed_form(version, p->name(), p->shape())));
  }
  return model;
}

void expect_version(const ParallelModel& model, int version) {
  for (const auto& p : model.parameters()) {
    ASSERT_TRUE(p->leaf().defined()) << p->name();
    EXPECT_TRUE(
        at::equal(p->leaf().detach(), p->part_of(closed_form(version, p->name(), p->shape()))))
        << p->name();
  }
}

void save(const fs::path& folder, int tp, int version, const SaveOptions& options = {},
          int num_ranks = 0) {
  on_world(num_ranks == 0 ? tp : num_ranks,
           [&](World& world) { model_of(world, tp, version).save_parallelized(folder, options); });
}

void expect_loads(const fs::path& folder, int tp, int version) {
  on_world(tp, [&](World& world) {
    ParallelModel model = model_of(world, tp, 0);
    model.from_parallelized(folder);
    expect_version(model, version);
  });
}

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name != ".lock") names.insert(name);
  }
  return names;
}

void copy_into_run(const fs::path& from, const fs::path& run) {
  fs::create_directories(run);
  fs::copy(from, run / "step_00000003");
  std::ofstream(run / "latest") << "step_00000003\n";
}

/// The error of loading a folder on one rank.
Error load_error(const fs::path& folder) {
  return thrown_by([&] { expect_loads(folder, 1, 1); });
}

const SaveOptions kMerged{.merge_checkpoints = true};

// Oracle: the weights in closed form, as they were saved.
TEST(OsloSave, RunFolder_LoadsItsNewestCheckpoint) {
  const TempFolder folder;
  save(folder / "merged", 1, 2, kMerged);
  copy_into_run(folder / "merged", folder / "run");
  save(folder / "split", 2, 1);
  copy_into_run(folder / "split", folder / "other");
  for (const int tp : {1, 2}) {
    expect_loads(folder / "run", tp, 2);
    expect_loads(folder / "other", tp, 1);
  }
}

// Oracle: the weights in closed form, as they were before they were sharded over dp.
TEST(OsloSave, UnderFsdpAndZero1_SavesAndLoadsTheWholeModel) {
  const TempFolder folder;
  for (const int tp : {1, 2}) {
    for (const bool is_fsdp : {false, true}) {
      const fs::path path = folder / str(tp, is_fsdp ? "fsdp" : "zero1");
      const auto shard = [&](ParallelModel& model) {
        const Axis& dp = model.data_parallel();
        if (!is_fsdp) return (void)Zero1Optimizer(model.parameters(), dp, {});
        for (Layer* layer : model.model().sequence()) fully_shard(*layer, dp);
      };
      on_world(2 * tp, [&](World& world) {
        ParallelModel model = model_of(world, tp, 1);
        shard(model);
        model.save_parallelized(path / "split");
        model.save_parallelized(path / "merged", kMerged);
        model.save_parallelized(path / "safe",
                                {.merge_checkpoints = true, .safe_serialization = true});
        for (const char* form : {"split", "merged", "safe"}) {
          ParallelModel other = model_of(world, tp, 0);
          shard(other);
          other.from_parallelized(path / form);
          expect_version(other, 1);
        }
      });
      for (const char* form : {"split", "merged", "safe"}) {
        SCOPED_TRACE(str(path.filename().string(), " ", form));
        expect_loads(path / form, 3, 1);
      }
    }
  }
}

TEST(OsloSave, OnAnyNumberOfRanks_LoadsOnAnyOther) {
  for (const int from : {1, 2, 3, 4}) {
    const TempFolder folder;
    save(folder / "split", from, 1);
    save(folder / "merged", from, 2, kMerged);
    for (const int to : {1, 2, 3, 4}) {
      SCOPED_TRACE(str(from, " to ", to));
      expect_loads(folder / "split", to, 1);
      expect_loads(folder / "merged", to, 2);
    }
  }
}

// Oracle: the size of the files, and disks of about that size.
TEST(OsloSave, DiskThatIsTooSmall_IsRefusedBeforeAnythingIsWritten) {
  const TempFolder folder;
  const fs::path disk = folder / "disk";
  fs::create_directory(disk);
  SaveOptions bin = kMerged;
  bin.safe_serialization = false;
  for (const SaveOptions& options : {SaveOptions(), kMerged, bin}) {
    const fs::path plain = folder / str("plain", names_in(folder.path()).size());
    save(plain, 3, 1, options);
    const uint64_t taken = test::bytes_on_disk(plain);
    constexpr uint64_t kSpare = 48 << 10;
    const bool may_mount = test::on_small_disk(disk, taken + kSpare, [&] {
      save(disk / "model", 3, 1, options);
      EXPECT_THAT(find_damage(disk / "model"), IsEmpty());
    });
    if (!may_mount) GTEST_SKIP() << "needs the right to mount a file system";
    test::on_small_disk(disk, taken - 4096, [&] {
      const Error error = thrown_by([&] { save(disk / "model", 3, 1, options); });
      EXPECT_EQ(error.code(), Code::kIo);
      EXPECT_THAT(error.what(), HasSubstr(" bytes are needed, the disk has "));
      EXPECT_FALSE(fs::exists(disk / "model"));
    });
  }
}

TEST(OsloSave, Folder_HasTheTutorialsFiles) {
  const TempFolder folder;
  save(folder / "split", 2, 1);
  save(folder / "replicas", 2, 1, {}, 4);  // two data-parallel copies
  save(folder / "merged", 2, 1, kMerged);
  save(folder / "one", 1, 1);
  for (const char* name : {"split", "replicas"}) {
    EXPECT_THAT(names_in(folder / name),
                ElementsAre("config.json", "manifest.json", "pytorch_model_tp_0_pp_0.bin",
                            "pytorch_model_tp_1_pp_0.bin"));
  }
  for (const char* name : {"merged", "one"}) {
    EXPECT_THAT(names_in(folder / name),
                ElementsAre("config.json", "manifest.json", "pytorch_model.bin"));
  }
  const Json config = Json::parse_file(folder / "split/config.json");
  EXPECT_EQ(config.at("torch_dtype").as_string(), "float32");
  EXPECT_EQ(config.at("architectures").at(size_t{0}).as_string(), "GPT2LMHeadModel");
}

// OSLO's format: of 3 tp chunks, rank r has r, tp + r and 2 tp + r. 6 heads of 4 on 2 ranks.
TEST(OsloSave, FusedMatrix_IsShardedInThirds) {
  const TempFolder folder;
  save(folder / "x", 2, 1);
  const std::string name = "transformer.h.1.attn.c_attn.weight";
  const auto chunks = closed_form(1, name, {24, 72}).chunk(6, 1);
  for (size_t rank = 0; rank < 2; ++rank) {
    const TorchFile file = TorchFile::open(folder / str("x/pytorch_model_tp_", rank, "_pp_0.bin"));
    Tensor got = at::empty({24, 36});
    file.read_block(*file.value().find(name)->get<SavedTensor>(), {}, mutable_bytes_of(got));
    EXPECT_TRUE(at::equal(got, at::cat({chunks[rank], chunks[2 + rank], chunks[4 + rank]}, 1)));
  }
}

TEST(OsloSave, MergedForms_HaveTheWholeTensors) {
  const TempFolder folder;
  save(folder / "parts", 2, 1, {.merge_checkpoints = true, .max_shard_size = "10KB"});
  save(folder / "safe", 3, 1, {.merge_checkpoints = true, .safe_serialization = true});
  save(folder / "safe_parts", 2, 1,
       {.merge_checkpoints = true, .max_shard_size = "10KiB", .safe_serialization = true});
  EXPECT_TRUE(fs::exists(folder / "parts/pytorch_model.bin.index.json"));
  EXPECT_TRUE(fs::exists(folder / "parts/pytorch_model-00002-of-00007.bin"))
      << testing::PrintToString(names_in(folder / "parts"));
  EXPECT_TRUE(fs::exists(folder / "safe/model.safetensors"));
  EXPECT_TRUE(fs::exists(folder / "safe_parts/model.safetensors.index.json"));
  for (const char* name : {"parts", "safe", "safe_parts"}) {
    SCOPED_TRACE(name);
    EXPECT_THAT(find_damage(folder / name), IsEmpty());
    const auto source = open_tensors(folder / name);
    const auto model = small_gpt2();
    model->name_tree();
    EXPECT_EQ(source->list().size(), model->parameters().size());
    for (const auto& p : model->parameters()) {
      Tensor got = at::empty(p->shape());
      source->read_block(p->name(), {}, mutable_bytes_of(got));
      EXPECT_TRUE(at::equal(got, closed_form(1, p->name(), p->shape()))) << p->name();
    }
  }
}

TEST(OsloSave, StateDict_IsSavedInPlaceOfTheWeights) {
  const TempFolder folder;
  on_world(2, [&](World& world) {
    const ParallelModel model = model_of(world, 2, 1);
    StateDict averaged, part;
    for (const auto& p : model.parameters()) {
      averaged[p->name()] = p->part_of(closed_form(2, p->name(), p->shape())).to(at::kBFloat16);
    }
    part["transformer.ln_f.bias"] = at::zeros({24});
    model.save_parallelized(folder / "averaged",
                            {.merge_checkpoints = true, .state_dict = averaged});
    model.save_parallelized(folder / "part", {.state_dict = part});
    expect_version(model, 1);
    const auto refused = [&](const std::string& name, const Tensor& tensor) {
      return std::string(thrown_by([&] {
                           model.save_parallelized(folder / "no", {.state_dict = {{name, tensor}}});
                         }).what());
    };
    EXPECT_THAT(refused("transformer.ln_g.bias", at::zeros({24})),
                HasSubstr("did you mean 'transformer.ln_f.bias'"));
    EXPECT_THAT(refused("transformer.wte.weight", at::zeros({53, 24})),
                AllOf(HasSubstr("[53, 24]"), HasSubstr("this rank's shard")));
  });
  EXPECT_FALSE(fs::exists(folder / "no"));
  expect_loads(folder / "averaged", 3, 2);  // bf16 holds the values exactly
  EXPECT_EQ(Json::parse_file(folder / "averaged/config.json").at("torch_dtype").as_string(),
            "bfloat16");
  EXPECT_THAT(load_error(folder / "part").what(),
              AllOf(HasSubstr("missing"), HasSubstr("transformer.h.0.ln_1.weight")));
}

TEST(OsloSave, OptionsThatDoNotGoTogether_AreRefused) {
  const TempFolder folder;
  const auto refused = [&](const SaveOptions& options, int tp) {
    const Error error = thrown_by([&] { save(folder / "x", tp, 1, options); });
    EXPECT_EQ(error.code(), Code::kUsage);
    return std::string(error.what());
  };
  EXPECT_THAT(refused({.max_shard_size = "1GB"}, 2), HasSubstr("merge_checkpoints"));
  EXPECT_THAT(refused({.safe_serialization = true}, 2), HasSubstr("merge_checkpoints"));
  EXPECT_THAT(refused({.merge_checkpoints = true, .max_shard_size = "big"}, 2),
              HasSubstr("max_shard_size='big' is not a size"));
  EXPECT_THAT(thrown_by([&] { save(folder / "x", 2, 0); }).what(), HasSubstr("has no memory yet"));
  EXPECT_FALSE(fs::exists(folder / "x"));
}

TEST(OsloSave, SameFolderAgain_ReplacesTheModelAndKeepsOtherFiles) {
  const TempFolder folder;
  const fs::path target = folder / "ckpt";
  save(target, 3, 1);
  std::ofstream(target / "tokenizer.json") << "{}";
  save(target.string() + "/", 2, 2, {.save_config = false});  // config.json stays
  EXPECT_THAT(names_in(target),
              ElementsAre("config.json", "manifest.json", "pytorch_model_tp_0_pp_0.bin",
                          "pytorch_model_tp_1_pp_0.bin", "tokenizer.json"));
  EXPECT_THAT(find_damage(target), IsEmpty());
  expect_loads(target, 4, 2);
  save(target, 2, 3, {.merge_checkpoints = true, .safe_serialization = true});
  EXPECT_THAT(names_in(target),
              ElementsAre("config.json", "manifest.json", "model.safetensors", "tokenizer.json"));
  expect_loads(target, 1, 3);
  EXPECT_THAT(names_in(folder.path()), ElementsAre("ckpt"));
}

TEST(OsloSave, FolderThatWouldLoseSomething_IsRefused) {
  const TempFolder folder;
  fs::create_directories(folder / "tree/sub");
  fs::create_directories(folder / "run");
  std::ofstream(folder / "run/state.json") << "{}";
  std::ofstream(folder / "file") << "text";
  const auto refused = [&](const char* name) {
    return std::string(thrown_by([&] { save(folder / name, 2, 1); }).what());
  };
  EXPECT_THAT(refused("tree"), HasSubstr("tree/sub is not a regular file and would be lost"));
  EXPECT_THAT(refused("run"), HasSubstr("is a checkpoint of a run"));
  EXPECT_THAT(refused("file"), HasSubstr("is a file; give the name of a folder"));
  EXPECT_EQ(thrown_by([&] { save(folder / "file", 2, 1); }).code(), Code::kIo);
}

// Fails every file call of every rank in turn; the threads race, so the failing call varies.
TEST(OsloSave, FailureAtEveryFileCall_LeavesTheOldModelOrTheNew) {
  const TempFolder folder;
  const fs::path target = folder / "ckpt";
  save(target, 2, 1);
  int num_calls = 0;
  for (int failing = 0; failing == 0 || failing <= num_calls; ++failing) {
    std::atomic<int> calls = 0;
    std::string message;
    {
      const ScopedFileHook hook(
          [&](FileCall, const std::string&) { return ++calls == failing ? ENOSPC : 0; });
      try {
        save(target, 2, 2);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), Code::kIo) << error.what();
        message = error.what();
      }
    }
    if (failing == 0) num_calls = calls;
    EXPECT_THAT(message, HasSubstr(failing == 0 ? "" : "No space left on device"));
    EXPECT_THAT(find_damage(target), IsEmpty()) << "call " << failing;
    bool is_old = false;
    on_world(1, [&](World& world) {
      ParallelModel model = model_of(world, 1, 0);
      model.from_parallelized(target);
      const auto p = model.parameters().front();
      is_old = at::equal(p->leaf().detach(), closed_form(1, p->name(), p->shape()));
      expect_version(model, is_old ? 1 : 2);
    });
    if (!is_old) save(target, 2, 1);
  }
  EXPECT_GT(num_calls, 20);
  EXPECT_THAT(names_in(folder.path()), ElementsAre("ckpt"));
}

TEST(OsloLoad, NamesOfOslo3_AreRead) {
  const TempFolder folder;
  const fs::path x = folder / "x";
  save(x, 2, 1);
  fs::remove(x / "manifest.json");
  for (const char* rank : {"0", "1"}) {
    const std::string stem = str("pytorch_model_tp_", rank, "_pp_0");
    fs::rename(x / (stem + ".bin"), x / (stem + "_ep_0.bin"));
  }
  expect_loads(x, 3, 1);
}

TEST(OsloLoad, WithoutConfig_TakesTheModelsOwn) {
  const TempFolder folder;
  save(folder / "x", 3, 1, {.save_config = false});
  EXPECT_FALSE(fs::exists(folder / "x/config.json"));
  expect_loads(folder / "x", 2, 1);
}

TEST(OsloLoad, InvalidFolders_AreReportedWithTheCause) {
  const TempFolder folder;
  EXPECT_EQ(load_error(folder / "none").code(), Code::kIo);
  EXPECT_THAT(load_error(folder / "none").what(), HasSubstr("is not a folder"));
  const auto name = [](int rank) { return str("pytorch_model_tp_", rank, "_pp_0.bin"); };

  save(folder / "gap", 3, 1);
  fs::remove(folder / "gap/manifest.json");
  fs::remove(folder / ("gap/" + name(1)));
  EXPECT_EQ(load_error(folder / "gap").code(), Code::kIo);
  EXPECT_THAT(load_error(folder / "gap").what(), HasSubstr("(1, 0)"));

  // The swapped files have the same shapes.
  save(folder / "swapped", 2, 1);
  fs::rename(folder / ("swapped/" + name(0)), folder / "swapped/x");
  fs::rename(folder / ("swapped/" + name(1)), folder / ("swapped/" + name(0)));
  fs::rename(folder / "swapped/x", folder / ("swapped/" + name(1)));
  EXPECT_EQ(load_error(folder / "swapped").code(), Code::kFormat);
  EXPECT_THAT(load_error(folder / "swapped").what(), HasSubstr("pytorch_model_tp_0_pp_0.bin"));

  save(folder / "other", 2, 1);
  fs::remove(folder / "other/manifest.json");
  std::ofstream(folder / "other/config.json")
      << R"({"model_type": "gpt2", "vocab_size": 60, "n_embd": 24, "n_layer": 2, "n_head": 6,
             "n_positions": 16})";
  EXPECT_THAT(load_error(folder / "other").code(), AnyOf(Code::kFormat, Code::kShape));
  EXPECT_THAT(load_error(folder / "other").what(), HasSubstr("transformer.wte.weight"));
}

// In the middle of training, the weights are saved, changed and loaded again: the optimizer, made
// before initialize, continues unaffected.
TEST(OsloLoad, BetweenTwoSteps_KeepsTheOptimizerValid) {
  const TempFolder folder;
  const auto run = [&](bool goes_through_files) {
    std::vector<double> losses;
    on_world(2, [&](World& world) {
      auto whole = small_gpt2();
      materialize(*whole, {.seed = 3});
      Optimizer optimizer(whole->parameters(), {});
      ParallelModel model = initialize(std::move(whole), config_of(2), world);
      for (int step = 0; step < 4; ++step) {
        Batch batch;
        batch.ids = at::arange(step, step + 12).view({2, 6});
        batch.labels = batch.ids;
        const Tensor loss = model(batch).loss;
        if (world.rank() == 0) losses.push_back(loss.item<double>());
        loss.backward();
        model.step(optimizer, 1e-2);
        optimizer.zero_grad();
        if (step != 1 || !goes_through_files) continue;
        model.save_parallelized(folder / "x");
        for (const auto& p : model.parameters()) p->leaf().detach().zero_();
        model.from_parallelized(folder / "x");
      }
    });
    return losses;
  };
  EXPECT_EQ(run(true), run(false));
}

}  // namespace
}  // namespace cleave::oslo::oslo_save_test
