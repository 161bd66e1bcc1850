// What a resumed run keeps from its checkpoint, and its warnings.
#include "cleave/train/resume.h"

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/base/stop.h"
#include "cleave/checkpoint/names.h"
#include "cleave/checkpoint/run_folder.h"
#include "cleave/comm/api/world.h"
#include "cleave/file/file.h"
#include "cleave/report/metrics.h"
#include "cleave/train/options.h"
#include "cleave/train/setup.h"
#include "cleave/train/trainer.h"
#include "tests/support/lora_runs.h"
#include "tests/support/paths.h"
#include "tests/support/saved_models.h"
#include "tests/support/small_run.h"
#include "tests/support/temp_folder.h"
#include "tests/support/thrown.h"

namespace cleave::resume_test {
namespace {

namespace fs = std::filesystem;
using test::LoraRuns;
using test::TempFolder;
using testing::HasSubstr;
using testing::Not;

TrainOptions tiny_run(const TempFolder& folder) {
  TrainOptions o = test::small_run(folder);
  o.batch_size = 2;
  return o;
}

TrainOptions resumed(TrainOptions o, int64_t steps) {
  o.model = TrainOptions{}.model;
  o.resume = true;
  o.steps = steps;
  return o;
}

/// Trains and returns what was written to stderr.
std::string warnings_of(const TrainOptions& options) {
  testing::internal::CaptureStderr();
  try {
    cleave_train(options);
  } catch (...) {
    testing::internal::GetCapturedStderr();
    throw;
  }
  return testing::internal::GetCapturedStderr();
}

TEST(Resume, CheckpointsAfterTheFirstOneIsGone_StillHaveItsTokenizer) {
  const TempFolder folder;
  TrainOptions o = tiny_run(folder);
  o.keep_last = 1;
  cleave_train(o);
  std::ofstream(folder / "run/step_00000004/generation_config.json") << "{\"eos_token_id\": 3}";
  o = resumed(o, 10);
  o.save_every = 2;
  cleave_train(o);
  const fs::path last = folder / "run/step_00000010";
  EXPECT_FALSE(fs::exists(folder / "run/step_00000004"));
  EXPECT_EQ(read_file(last / "generation_config.json"), "{\"eos_token_id\": 3}");
  EXPECT_TRUE(fs::exists(last / "tokenizer.json"));
}

/// The number of records of an event file: a length of 8 bytes, a checksum of 4, data, one of 4.
int num_records(const fs::path& file) {
  const std::string bytes = read_file(file);
  int count = 0;
  for (size_t at = 0; at < bytes.size(); ++count) {
    uint64_t length = 0;
    std::memcpy(&length, bytes.data() + at, sizeof length);
    at += 16 + length;
  }
  return count;
}

// Each start writes a file of its own: the format's version, the start, and its steps.
TEST(Resume, LogForTensorBoard_HasAnEventOfEachStep) {
  const TempFolder folder;
  TrainOptions o = tiny_run(folder);
  cleave_train(o);
  EXPECT_FALSE(fs::exists(folder / "run/tensorboard"));
  o.log = "tensorboard";
  o.out = folder / "logged";
  o.tp = 2;
  cleave_train(o);
  cleave_train(resumed(o, 7));
  std::vector<fs::path> files;
  for (const auto& each : fs::directory_iterator(folder / "logged/tensorboard")) {
    files.push_back(each.path());
  }
  std::sort(files.begin(), files.end());
  ASSERT_EQ(files.size(), 2U);
  EXPECT_EQ(num_records(files[0]), 2 + 4);
  EXPECT_EQ(num_records(files[1]), 2 + 3);
}

// The second run trains with another learning rate, so its checkpoint differs from the superseded
// one.
TEST(Resume, FromAnOlderCheckpointThatLatestNames_TrainsAndSavesItsStepsAgain) {
  const TempFolder folder;
  TrainOptions o = tiny_run(folder);
  o.save_every = 2;
  cleave_train(o);
  const fs::path run = o.out;
  std::ofstream(run / "latest") << "step_00000002\n";
  fs::last_write_time(run / "latest", fs::last_write_time(run / "step_00000004/manifest.json") +
                                          std::chrono::seconds(1));
  TrainOptions again = resumed(o, 4);
  again.lr = 0.1;
  again.warmup = 0;
  EXPECT_THAT(warnings_of(again), HasSubstr("step_00000004.superseded"));
  EXPECT_EQ(newest_checkpoint(run), run / "step_00000004");
  EXPECT_NE(read_file(run / "step_00000004/model.safetensors"),
            read_file(run / "step_00000004.superseded/model.safetensors"));
  EXPECT_EQ(read_metrics((run / "metrics.jsonl").string()).size(), 4U);
}

// Oracle: the same steps in a folder of their own.
TEST(Resume, FoldersOfACheckpointsNameWithoutManifest_AreRenamedAndKept) {
  const TempFolder folder, plain;
  TrainOptions whole = tiny_run(plain), o = tiny_run(folder);
  whole.schedule = o.schedule = "constant";  // which does not depend on the number of steps
  cleave_train(whole);
  o.steps = 2;
  cleave_train(o);
  const fs::path run = o.out;
  for (const char* name : {"step_00000004", "step_00000004.damaged"}) {
    fs::create_directory(run / name);
    std::ofstream(run / name / "model.safetensors") << "of " << name;
  }
  std::ofstream(run / "step_00000003") << "a file";
  o = resumed(o, 4);
  o.save_every = 1;
  const std::string warnings = warnings_of(o);
  EXPECT_THAT(warnings, HasSubstr("step_00000003 has no manifest.json"));
  EXPECT_THAT(warnings, HasSubstr("step_00000004.damaged2\n"));
  EXPECT_EQ(read_file(run / "step_00000003.damaged"), "a file");
  EXPECT_EQ(read_file(run / "step_00000004.damaged/model.safetensors"), "of step_00000004.damaged");
  EXPECT_EQ(read_file(run / "step_00000004.damaged2/model.safetensors"), "of step_00000004");
  EXPECT_EQ(read_file(run / "step_00000004/model.safetensors"),
            read_file(plain / "run/step_00000004/model.safetensors"));
}

// The first start of a job may fail before it renames the newer checkpoints, when a rank comes
// late.
TEST(Resume, RestartAfterAnOlderNameWasWrittenIntoLatest_BeginsThere) {
  const TempFolder folder;
  TrainOptions o = tiny_run(folder);
  o.save_every = 1;
  cleave_train(o);
  const fs::path run = o.out;
  EXPECT_EQ(newest_intact_checkpoint(run).value().path, run / "step_00000004");
  std::ofstream(run / "latest") << "step_00000002\n";
  const auto saved = fs::last_write_time(run / "step_00000004/manifest.json");
  fs::last_write_time(run / "latest", saved + std::chrono::seconds(1));
  EXPECT_EQ(newest_intact_checkpoint(run).value().path, run / "step_00000002");
  // A run that died before it could name its newest checkpoint.
  fs::last_write_time(run / "latest", saved - std::chrono::seconds(1));
  EXPECT_EQ(newest_intact_checkpoint(run).value().path, run / "step_00000004");
}

// A path of two words could be a model of the Hugging Face Hub.
TEST(Resume, LatestThatNamesAMissingCheckpoint_IsRefusedByTheNameOfTheFile) {
  const TempFolder folder;
  TrainOptions o = tiny_run(folder);
  cleave_train(o);
  fs::remove_all(o.out + "/step_00000004");
  const fs::path before = fs::current_path();
  fs::current_path(folder.path());
  TrainOptions again = resumed(o, 5);
  again.out = fs::path(o.out).filename();
  const Error error = test::thrown_by([&] { cleave_train(again); });
  fs::current_path(before);
  EXPECT_EQ(error.code(), Code::kIo);
  EXPECT_EQ(std::string(error.what()),
            again.out +
                "/latest names step_00000004, which is not there; restore it, or write the "
                "name of another checkpoint there");
}

TEST(Resume, SeedOf64Bits_IsRestoredAndAnotherOneIsReported) {
  const TempFolder folder;
  TrainOptions o = tiny_run(folder);
  o.seed = 0x8000000000000001U;
  cleave_train(o);
  EXPECT_EQ(warnings_of(resumed(o, 5)), "");
  o.seed = 7;
  o.data = {test::source_file("README.md")};
  const std::string warnings = warnings_of(resumed(o, 6));
  EXPECT_THAT(warnings, HasSubstr("was started with --seed 9223372036854775809"));
  EXPECT_THAT(warnings, HasSubstr("was started on other data"));
}

TEST(Resume, FromADamagedCheckpoint_NamesAnOlderOne) {
  const TempFolder folder;
  TrainOptions o = tiny_run(folder);
  o.save_every = 2;
  cleave_train(o);
  std::ofstream(o.out + "/step_00000004/model.safetensors", std::ios::app) << "x";
  const Error error = test::thrown_by([&] { cleave_train(resumed(o, 5)); });
  EXPECT_EQ(error.code(), Code::kFormat);
  EXPECT_THAT(error.what(), HasSubstr("; restore it, or resume from an older one: write "
                                      "step_00000002 into " +
                                      o.out + "/latest"));
  fs::remove_all(o.out + "/step_00000002");
  EXPECT_THAT(test::thrown_by([&] { cleave_train(resumed(o, 5)); }).what(),
              HasSubstr("; restore it, or start again in another folder"));
}

TEST(Resume, InAnotherOrderOfData_IsReported) {
  const TempFolder folder;
  TrainOptions o = tiny_run(folder);
  o.shuffle = false;
  cleave_train(o);
  o.shuffle = true;
  EXPECT_THAT(warnings_of(resumed(o, 5)), HasSubstr("was started with --no-shuffle"));
}

// Which rows share a sequence depends on the seed: the data are the same.
TEST(Resume, PackedRunWithAnotherSeed_ReportsTheSeedOnly) {
  const TempFolder folder;
  TrainOptions o = tiny_run(folder);
  std::ofstream rows(folder / "rows.jsonl");
  for (int i = 0; i < 40; ++i)
    rows << R"({"input_ids": [1, 2, 3)" << (i % 3 == 0 ? "]}\n" : ", 4]}\n");
  rows.close();
  o.data = {folder / "rows.jsonl"};
  o.packing = true;
  o.eval_data = o.data;  // which stay the same too
  o.eval_every = 1;
  o.early_stop = 9;
  cleave_train(o);
  EXPECT_EQ(warnings_of(resumed(o, 5)), "");
  o.seed = 7;
  const std::string warnings = warnings_of(resumed(o, 6));
  EXPECT_THAT(warnings, HasSubstr("was started with --seed 0, now 7"));
  EXPECT_THAT(warnings, Not(HasSubstr("other data")));
  EXPECT_THAT(warnings, Not(HasSubstr("evaluation data changed")));
  o = resumed(o, 7);
  o.packing = false;
  EXPECT_THAT(warnings_of(o), HasSubstr("was started with --packing"));
}

// As of a run from before the option was added.
TEST(Resume, OptionThatTheStateLacks_HadItsDefault) {
  const Json state = Json::parse("{}", "state.json");
  TrainOptions o;
  o.out = "run";
  EXPECT_THAT(check_resumed(state, o), testing::IsEmpty());
  o.optimizer = "sgd";  // the optimizer's files are checked
  EXPECT_THAT(check_resumed(state, o), testing::IsEmpty());
  o.packing = true;
  EXPECT_THAT(check_resumed(state, o),
              testing::ElementsAre(HasSubstr("the run in run was started with --no-packing: ")));
  o.batch_size = TrainOptions{}.batch_size + 1;
  EXPECT_EQ(test::thrown_by([&] { (void)check_resumed(state, o); }).code(), Code::kUsage);
}

TEST(Resume, WithAnotherOptimizer_NamesTheFlag) {
  const auto refusal = [](const std::string& before, const std::string& now) {
    const TempFolder folder;
    TrainOptions o = tiny_run(folder);
    o.optimizer = before;
    o.steps = 1;
    cleave_train(o);
    o = resumed(o, 2);
    o.optimizer = now;
    const Error error = test::thrown_by([&] { cleave_train(o); });
    EXPECT_EQ(error.code(), Code::kUsage) << before << now;
    return std::string(error.what());
  };
  EXPECT_THAT(refusal("muon", "adamw"), HasSubstr("give --optimizer muon"));
  EXPECT_THAT(refusal("muon", "sgd"), HasSubstr("give --optimizer muon"));
  EXPECT_THAT(refusal("adamw", "muon"), HasSubstr("give --optimizer adamw or adam"));
  EXPECT_THAT(refusal("sgd", "adamw"), HasSubstr("give --optimizer sgd"));
  // These two keep the same tensors.
  EXPECT_THAT(refusal("adam", "adamw"), HasSubstr("was started with --optimizer adam; give the"));
  EXPECT_THAT(refusal("adamw", "adam"), HasSubstr("was started with --optimizer adamw; give the"));
}

// Oracle: the same steps without an interruption.
TEST(Resume, WithoutDtype_TrainsInThatOfTheRun) {
  const TempFolder folder, plain;
  for (const char* dtype : {"bf16", "fp16", "fp64"}) {
    TrainOptions whole = tiny_run(plain), o = tiny_run(folder);
    whole.dtype = o.dtype = dtype;
    whole.schedule = o.schedule = "constant";  // which does not depend on the number of steps
    whole.out = plain / dtype;
    o.out = folder / dtype;
    whole.steps = 6;
    cleave_train(whole);
    cleave_train(o);
    o.dtype.clear();
    EXPECT_EQ(warnings_of(resumed(o, 6)), "") << dtype;
    EXPECT_EQ(read_file(o.out + "/step_00000006/model.safetensors"),
              read_file(whole.out + "/step_00000006/model.safetensors"))
        << dtype;
  }
}

// Oracle: the same steps without an interruption. Without a length, other data would be read.
TEST(Resume, WithoutSeqLen_TakesThatOfTheRun) {
  const TempFolder folder, plain;
  std::ofstream(folder / "rows.jsonl") << "{\"input_ids\": [1, 2, 3, 4]}\n{\"input_ids\": [5, 6]}\n"
                                          "{\"input_ids\": [7, 8]}\n{\"input_ids\": [9, 10]}\n";
  const std::string text = test::source_file("LICENSE");
  for (const std::string& data : {text, (folder / "rows.jsonl").string()}) {
    TrainOptions whole = tiny_run(plain), o = tiny_run(folder);
    const std::string name = data == text ? "text" : "rows";
    whole.packing = o.packing = data != text;
    whole.data = o.data = {data};
    whole.schedule = o.schedule = "constant";  // which does not depend on the number of steps
    whole.seq_len = o.seq_len = 4;
    whole.out = plain / name;
    o.out = folder / name;
    whole.steps = 6;
    cleave_train(whole);
    cleave_train(o);
    o.seq_len = 0;
    EXPECT_EQ(warnings_of(resumed(o, 6)), "") << data;
    EXPECT_EQ(read_file(o.out + "/step_00000006/model.safetensors"),
              read_file(whole.out + "/step_00000006/model.safetensors"))
        << data;
  }
}

TEST(Resume, WithAnotherDtype_IsReported) {
  const TempFolder folder;
  TrainOptions o = tiny_run(folder);
  o.dtype = "bf16";
  cleave_train(o);
  o.dtype = "fp32";
  EXPECT_THAT(warnings_of(resumed(o, 5)), HasSubstr("was started with --dtype bf16, now fp32: "));
  o.dtype.clear();
  EXPECT_EQ(warnings_of(resumed(o, 6)), "");  // now it is a run in fp32
}

TEST(Resume, WithAnotherDpoBeta_IsReported) {
  TrainOptions o;
  o.out = "run";
  EXPECT_THAT(check_resumed(Json::parse(R"({"dpo_beta": 0.1})", "state.json"), o),
              testing::IsEmpty());
  EXPECT_THAT(check_resumed(Json::parse(R"({"dpo_beta": 0.5})", "state.json"), o),
              testing::ElementsAre(HasSubstr("was started with --dpo-beta 0.5, now 0.1: ")));
}

TEST(Resume, SignalBeforeTheFirstStep_TrainsNone) {
  const TempFolder folder;
  TrainOptions o = tiny_run(folder);
  const TrainSetup setup = make_setup(o, 0);
  {
    const StopSignal stop;
    (void)std::raise(SIGTERM);
    run_ranks(1, [&](World& world) { EXPECT_EQ(Trainer(setup, world).run(), SIGTERM); });
  }
  EXPECT_EQ(read_metrics(o.out + "/metrics.jsonl").size(), 0U);
  EXPECT_EQ(warnings_of(resumed(o, 2)), "");
  EXPECT_EQ(read_metrics(o.out + "/metrics.jsonl").size(), 2U);
}

// As when a run is resumed while the one before still saves: the set-up, which reads the data,
// chooses the checkpoint before the folder is locked.
TEST(Resume, CheckpointThatAnotherRunSavesMeanwhile_IsNotSuperseded) {
  const TempFolder folder;
  TrainOptions o = tiny_run(folder);
  cleave_train(o);
  const TrainSetup setup = make_setup(resumed(o, 8), 0);
  cleave_train(resumed(o, 6));
  const Error error = test::thrown_by(
      [&] { run_ranks(1, [&](World& world) { (void)Trainer(setup, world).run(); }); });
  EXPECT_EQ(error.code(), Code::kIo);
  EXPECT_THAT(error.what(),
              HasSubstr("saved step_00000006 after this run had chosen step_00000004"));
  EXPECT_EQ(newest_checkpoint(o.out), fs::path(o.out) / "step_00000006");
  EXPECT_TRUE(fs::exists(folder / "run/step_00000006"));
  EXPECT_EQ(read_metrics(o.out + "/metrics.jsonl").size(), 6U);
}

// Oracle: the least of the losses that the resumed run has written. All are above the first best
// one.
TEST(Resume, BestEvaluationOfOtherData_IsNotCompared) {
  const TempFolder folder;
  TrainOptions o = tiny_run(folder);
  o.eval_data = o.data;
  o.eval_every = 1;
  o.early_stop = 3;
  o.lr = 1e-2;
  cleave_train(o);
  std::string other;
  for (int i = 0; i < 400; ++i) other += static_cast<char>('!' + i * 7 % 90);
  std::ofstream(folder / "other.txt") << other;
  TrainOptions without = resumed(o, 5);  // knows which data the best one is of
  without.eval_data = {};
  without.eval_every = without.early_stop = 0;
  EXPECT_EQ(warnings_of(without), "");
  TrainOptions again = resumed(o, 8);
  again.eval_data = {folder / "other.txt"};
  EXPECT_THAT(warnings_of(again),
              HasSubstr("the evaluation data changed since the best evaluation"));
  double best = INFINITY;
  int64_t best_step = 0;
  for (const StepMetrics& m : read_metrics(o.out + "/metrics.jsonl")) {
    if (m.step <= 5 || m.eval_loss.value() >= best) continue;
    best = *m.eval_loss;
    best_step = m.step;
  }
  const Json state = Json::parse_file(newest_checkpoint(o.out).value() / "state.json");
  EXPECT_EQ(state.at("best_step").as_int(), best_step);
  EXPECT_EQ(state.at("best_loss").as_number(), best);
}

TEST(Resume, AutomaticGemm_IsThatOfTheCheckpoint) {
  const TempFolder folder;
  TrainOptions o = tiny_run(folder);
  for (const char* gemm : {"mkl", "onednn"}) {
    o.gemm = gemm;
    o.out = folder / gemm;
    cleave_train(o);
    TrainOptions again = resumed(o, 5);
    again.gemm = "auto";
    cleave_train(again);
    const Json state = Json::parse_file(folder / gemm / "step_00000005/state.json");
    EXPECT_EQ(state.at("gemm").as_string(), gemm);
  }
}

// The checkpoint that is being written is from before the step that fails.
TEST(AsyncSave, StepThatIsNotFinite_WaitsForThePendingCheckpoint) {
  const TempFolder folder;
  TrainOptions o = tiny_run(folder);
  o.save_every = 1;
  o.async_save = true;
  o.steps = 40;
  o.lr = 1e30;
  o.warmup = 0;
  o.clip = 0;
  EXPECT_EQ(test::thrown_by([&] { cleave_train(o); }).code(), Code::kNumerics);
  const auto steps = read_metrics(o.out + "/metrics.jsonl");
  ASSERT_FALSE(steps.empty());
  const auto newest = newest_checkpoint(o.out);
  ASSERT_TRUE(newest);
  EXPECT_EQ(newest->filename(), checkpoint_name(steps.back().step));
}

// Oracle: the same run, resumed without --model.
TEST_F(LoraRuns, ModelThatIsAnOlderCheckpointOfTheRun_IsReported) {
  TrainOptions o = options("run");
  o.save_every = 3;
  cleave_train(o);
  fs::copy(o.out, folder_ / "same", fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  TrainOptions same = resumed(o, 8);
  same.out = folder_ / "same";
  EXPECT_EQ(warnings_of(same), "");
  o = resumed(o, 8);
  o.model = o.out + "/step_00000003/";
  EXPECT_EQ(warnings_of(o), str("cleave: warning: --model ", o.model,
                                " is another checkpoint of the run, which continues from "
                                "step_00000006; to continue from step_00000003, write "
                                "step_00000003 into ",
                                o.out, "/latest\n"));
  const auto loss = [](const TrainOptions& run) {
    return read_metrics(run.out + "/metrics.jsonl").back().loss;
  };
  EXPECT_EQ(loss(o), loss(same));
  const std::string config = read_file(o.out + "/step_00000008/adapter_config.json");
  EXPECT_THAT(config, HasSubstr("\"" + base_ + "\""));
}

TEST(Steps, WarmupLongerThanTheRun_IsRefusedWithDefaultStepsToo) {
  const TempFolder folder;
  TrainOptions o = tiny_run(folder);
  o.steps = std::nullopt;
  o.warmup = 1001;
  const Error error = test::thrown_by([&] { cleave_train(o); });
  EXPECT_EQ(error.code(), Code::kUsage);
  EXPECT_STREQ(error.what(), "--warmup is 1001; expected at most the 1000 steps of the run");
}

}  // namespace
}  // namespace cleave::resume_test
