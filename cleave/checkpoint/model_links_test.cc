// Oracle: the file system, and transformers if the Python of $CLEAVE_PYTHON has it.
#include "cleave/checkpoint/model_links.h"

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/checkpoint/run_folder.h"
#include "cleave/file/file.h"
#include "tests/support/python.h"
#include "tests/support/saved_models.h"
#include "tests/support/temp_folder.h"

namespace cleave::model_links_test {
namespace {

namespace fs = std::filesystem;
using test::names_below;
using test::TempFolder;
using test::Training;
using testing::ElementsAre;
using testing::HasSubstr;

/// Makes files that hold their own paths.
void make_files(const fs::path& folder, const std::vector<std::string>& names) {
  fs::create_directories(folder);
  for (const std::string& name : names) std::ofstream(folder / name) << (folder / name).string();
}

TEST(ModelLinks, FilesOfTheModelButNotThoseForResuming_AreLinkedToTheNewestCheckpoint) {
  const TempFolder run;
  const Axis one;
  RunFolder folder(run.path(), {one, one, one}, 1);
  const Training training(one);
  folder.save(training.checkpoint(1));
  folder.save(training.checkpoint(2));
  EXPECT_THAT(names_below(run.path()),
              ElementsAre(".lock", "config.json", "latest", "model.safetensors", "step_00000002",
                          "tokenizer.json"));
  for (const char* name : {"config.json", "model.safetensors", "tokenizer.json"}) {
    EXPECT_EQ(fs::read_symlink(run / name), fs::path("step_00000002") / name);
  }
  EXPECT_EQ(ModelFolder::open(run.path().string()).path, (run / "step_00000002").string());
}

TEST(ModelLinks, NamesThatOnlyAnOlderCheckpointHas_AreRemoved) {
  const TempFolder run;
  make_files(run / "step_00000001", {"config.json", "model.safetensors.index.json", "state.json"});
  make_files(run / "step_00000002", {"config.json", "model.safetensors"});
  make_files(run.path(), {"metrics.jsonl"});
  fs::create_symlink("metrics.jsonl", run / "my-link");
  EXPECT_EQ(link_model_files(run.path(), run / "step_00000001"), "");
  EXPECT_EQ(link_model_files(run.path(), run / "step_00000002"), "");
  EXPECT_THAT(names_below(run.path()),
              ElementsAre("config.json", "metrics.jsonl", "model.safetensors", "my-link",
                          "step_00000001", "step_00000002"));
}

// scp -r copies files in place of links.
TEST(ModelLinks, CopiesOfAnOlderCheckpointsFiles_AreReplaced) {
  const TempFolder run;
  make_files(run / "step_00000001", {"model.safetensors"});
  make_files(run / "step_00000002", {"model.safetensors"});
  fs::copy(run / "step_00000001/model.safetensors", run.path());
  EXPECT_EQ(link_model_files(run.path(), run / "step_00000002"), "");
  EXPECT_EQ(read_file(run / "model.safetensors"),
            (run / "step_00000002/model.safetensors").string());
}

// Flags of `train --config`, a tokenizer that the user changed, a link of the user.
TEST(ModelLinks, OtherFiles_StayAndAreNamed) {
  const TempFolder run;
  make_files(run / "step_00000001", {"config.json", "model.safetensors", "tokenizer.json"});
  make_files(run.path(), {"config.json"});
  fs::create_symlink("config.json", run / "tokenizer.json");
  const std::string problem = link_model_files(run.path(), run / "step_00000001");
  EXPECT_THAT(
      problem,
      HasSubstr("json: the file is not from a checkpoint of this run, so it is not replaced"));
  EXPECT_EQ(read_file(run / "config.json"), (run / "config.json").string());
  EXPECT_EQ(fs::read_symlink(run / "tokenizer.json"), "config.json");
  EXPECT_EQ(fs::read_symlink(run / "model.safetensors"), "step_00000001/model.safetensors");
}

TEST(ModelLinks, StartOfARunWithoutLinks_MakesThem) {
  const TempFolder run;
  const Axis one;
  const Training training(one);
  RunFolder(run.path(), {one, one, one}).save(training.checkpoint(1));
  fs::remove(run / "config.json");
  const RunFolder again(run.path(), {one, one, one});
  EXPECT_EQ(fs::read_symlink(run / "config.json"), "step_00000001/config.json");
}

// A folder in the place of a link stands for a disk that has none.
TEST(ModelLinks, LinkThatCannotBeMade_IsOneWarningAndTheCheckpointIsSaved) {
  const TempFolder run;
  fs::create_directories(run / "config.json/inside");
  const Axis one;
  const Training training(one);
  RunFolder folder(run.path(), {one, one, one});
  testing::internal::CaptureStderr();
  folder.save(training.checkpoint(1));
  folder.save(training.checkpoint(2));
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(said,
              HasSubstr("config.json: the file is not from a checkpoint of this run, so it is not "
                        "replaced; for programs other than cleave, give "
                        "the checkpoint, as " +
                        (run / "step_00000001").string() + "\n"));
  EXPECT_EQ(said.find('\n'), said.size() - 1) << said;
  EXPECT_EQ(newest_checkpoint(run.path()), run / "step_00000002");
}

constexpr const char* kOpenRun = R"(
import sys, torch, transformers
from safetensors.torch import load_file
run = sys.argv[1]
model, info = transformers.AutoModelForCausalLM.from_pretrained(run, output_loading_info=True)
got, want = model.state_dict(), load_file(run + '/step_00000002/model.safetensors')
assert not any(info.get(k) for k in ('missing_keys', 'unexpected_keys', 'mismatched_keys')), info
assert want and all(torch.equal(got[name], value) for name, value in want.items())
)";

TEST(ModelLinks, Transformers_OpensTheRunFolder) {
  if (!test::python_has("transformers")) {
    GTEST_SKIP() << "python3 or $CLEAVE_PYTHON has no transformers";
  }
  const TempFolder run;
  const Axis one;
  RunFolder folder(run.path(), {one, one, one});
  const Training training(one);
  for (const int64_t step : {1, 2}) folder.save(training.checkpoint(step));
  const auto result = test::run_python(kOpenRun, {run.path().string()});
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

}  // namespace
}  // namespace cleave::model_links_test
