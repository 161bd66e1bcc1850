// Training, generating and resuming with the whole program, on threads and on processes.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/paths.h"
#include "tests/support/program.h"
#include "tests/support/terminal_program.h"
#include "tests/support/train_program.h"

namespace cleave::test {
namespace {

using nlohmann::json;
using Words = std::vector<std::string>;

Words launched(int ranks, const Words& words) {
  Words all{"launch", "-n", std::to_string(ranks), "--", test::program()};
  all.insert(all.end(), words.begin(), words.end());
  return all;
}

// Oracle: the run on one rank, in fp64, where only the order of sums differs.
TEST(TrainProgram, ProcessesUnderLaunch_GiveTheLossesOfOneRank) {
  const TempFolder folder;
  const Words fp64{"--dtype", "fp64", "--steps", "20"};
  const RunResult one = run_cleave(train(folder / "one", fp64));
  ASSERT_EQ(one.exit_code, 0) << one.err;
  Words parallel = fp64;
  parallel.insert(parallel.end(), {"--tp", "2", "--dp", "2"});
  const RunResult four = run_cleave(launched(4, train(folder / "four", parallel)));
  ASSERT_EQ(four.exit_code, 0) << four.err;
  EXPECT_NE(four.out.find("as processes"), std::string::npos) << four.out;
  const auto want = metrics_of(folder / "one");
  const auto got = metrics_of(folder / "four");
  ASSERT_EQ(want.size(), 20U);
  ASSERT_EQ(got.size(), 20U);
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_NEAR(got[i]["loss"].get<double>(), want[i]["loss"].get<double>(), 1e-9)
        << "step " << i + 1;
  }
}

TEST(TrainProgram, Quiet_PrintsWarningsAndErrorsOnly) {
  const TempFolder folder;
  const RunResult ran =
      run_cleave(train(folder / "run", {"--quiet", "--steps", "2", "--eval-data",
                                        test::source_file("LICENSE"), "--schedule-pp", "1f1b"}));
  EXPECT_EQ(ran.exit_code, 0);
  EXPECT_EQ(ran.out, "");
  EXPECT_TRUE(ran.err.starts_with("cleave: warning: --schedule-pp 1f1b orders")) << ran.err;
  EXPECT_EQ(metrics_of(folder / "run").size(), 2U);
}

// Colors are the control sequences that end in "m" (ECMA-48, SGR). The line that is redrawn stays.
TEST(TrainProgram, TerminalWithNoColor_ShowsProgressWithoutColors) {
  const TempFolder folder;
  std::ofstream(folder / "tiny.json") << kTinyLlama;
  Words words = train(folder / "run", {"--model", folder / "tiny.json", "--steps", "3"});
  words.insert(words.begin(), {"/usr/bin/env", "NO_COLOR=1", "TERM=xterm", test::program()});
  TerminalProgram program(words);
  const std::string shown = program.read_until("the end of the program");
  EXPECT_EQ(program.wait(), 0) << shown;
  EXPECT_NE(shown.find("\r\x1b[K"), std::string::npos) << shown;
  EXPECT_NE(shown.find("step 3/3"), std::string::npos) << shown;
  EXPECT_FALSE(std::regex_search(shown, std::regex("\x1b\\[[0-9;]*m"))) << shown;
}

// All of it as four processes; oracle: the same run on one rank in fp64.
TEST(TrainProgram, PipelineAndShardsAsProcesses_GiveTheLossesOfOneRankAndResumeOnIt) {
  const TempFolder folder;
  const Words fp64{"--dtype", "fp64", "--steps", "4", "--save-every", "2"};
  ASSERT_EQ(run_cleave(train(folder / "one", fp64)).exit_code, 0);
  const auto want = metrics_of(folder / "one");
  const std::vector<Words> layouts = {
      {"--pp", "2", "--tp", "2", "--sequence-parallel", "--recompute", "full"},
      {"--pp", "2", "--dp", "2", "--fsdp", "--virtual-pipeline", "2"},
      {"--pp", "2", "--dp", "2", "--zero", "1", "--schedule-pp", "zero-bubble"}};
  for (size_t i = 0; i < layouts.size(); ++i) {
    const std::string run = folder / ("split" + std::to_string(i));
    Words words = fp64;
    words.insert(words.end(), layouts[i].begin(), layouts[i].end());
    const RunResult ran = run_cleave(launched(4, train(run, words)));
    ASSERT_EQ(ran.exit_code, 0) << ran.err;
    EXPECT_TRUE(ran.out.starts_with("memory  ")) << ran.out;
    EXPECT_NE(ran.out.find("\ntime  "), std::string::npos) << ran.out;
    const auto got = metrics_of(run);
    ASSERT_EQ(got.size(), want.size());
    for (size_t k = 0; k < want.size(); ++k) {
      EXPECT_NEAR(got[k]["loss"].get<double>(), want[k]["loss"].get<double>(), 1e-9)
          << "step " << k + 1;
      EXPECT_NEAR(got[k]["grad_norm"].get<double>(), want[k]["grad_norm"].get<double>(), 1e-9);
    }
  }
  // The half-way checkpoint of four ranks resumes on one rank.
  const std::string half = folder / "split1";
  std::filesystem::remove_all(half + "/step_00000004");
  std::ofstream(half + "/latest") << "step_00000002\n";
  Words resume = fp64;
  resume.emplace_back("--resume");
  const RunResult again = run_cleave(train(half, resume));
  ASSERT_EQ(again.exit_code, 0) << again.err;
  EXPECT_NEAR(metrics_of(half).back()["loss"].get<double>(), want.back()["loss"].get<double>(),
              1e-9);
}

TEST(TrainProgram, ResumedWithOtherFlags_ReportsTheDifferences) {
  const TempFolder folder;
  const std::string run = folder / "run";
  const auto resumed = [&](Words flags) {
    flags.emplace_back("--resume");
    return run_cleave(train(run, flags));
  };
  const RunResult begun = run_cleave(train(
      run, {"--steps", "2", "--model", "llama-15m", "--eval-data", test::source_file("LICENSE")}));
  ASSERT_EQ(begun.exit_code, 0) << begun.err;
  // The printed evaluation loss is the one in metrics.jsonl.
  std::ostringstream eval;
  eval << "  eval " << std::fixed << std::setprecision(4)
       << metrics_of(run).back()["eval_loss"].get<double>();
  EXPECT_NE(begun.out.find(eval.str()), std::string::npos) << begun.out;

  const RunResult same = resumed({"--steps", "3"});
  EXPECT_EQ(same.err, "");
  EXPECT_NE(same.out.find("\nmodel   llama-15m: "), std::string::npos) << same.out;
  const auto data_line = [](const std::string& out) {
    const size_t at = out.find("\ndata    ");
    return out.substr(at, out.find('\n', at + 1) - at);
  };
  EXPECT_EQ(data_line(same.out), data_line(begun.out));
  EXPECT_NE(data_line(begun.out).find("tokenizer bytes"), std::string::npos) << begun.out;
  const RunResult done = resumed({"--steps", "3"});
  EXPECT_EQ(done.err, "");
  EXPECT_NE(done.out.find("\nall 3 steps are done; raise --steps"), std::string::npos) << done.out;
  const RunResult model = resumed({"--steps", "3", "--model", "gpt2-tiny"});
  EXPECT_EQ(model.err, "cleave: warning: --model gpt2-tiny is ignored: the run in " + run +
                           " resumes with its own model, llama-15m\n");
  const RunResult seed = resumed({"--steps", "3", "--seed", "7"});
  EXPECT_NE(seed.err.find("was started with --seed 0, now 7: the order"), std::string::npos);
  const RunResult rows = resumed({"--steps", "3", "--seq-len", "16"});
  EXPECT_NE(rows.err.find("was started on other data or with another --seq-len; "
                          "it resumes at step 3 of this data"),
            std::string::npos)
      << rows.err;
}

// A scheduler starts the same command again, whether the run has saved a checkpoint or not. Oracle:
// the run without --resume.
TEST(TrainProgram, ResumeWithoutACheckpoint_StartsFromTheBeginningAndSaysSo) {
  const TempFolder folder;
  std::ofstream(folder / "tiny.json") << kTinyLlama;
  const Words flags{"--model", folder / "tiny.json", "--steps", "2"};
  ASSERT_EQ(run_cleave(train(folder / "plain", flags)).exit_code, 0);
  const std::string run = folder / "run";
  Words again = flags;
  again.emplace_back("--resume");
  const RunResult first = run_cleave(train(run, again));
  EXPECT_EQ(first.exit_code, 0);
  EXPECT_EQ(first.err, "cleave: warning: --resume: " + run +
                           " has no checkpoint; the run starts from the beginning\n");
  const auto want = metrics_of(folder / "plain"), got = metrics_of(run);
  ASSERT_EQ(got.size(), 2U);
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ(got[i]["loss"], want[i]["loss"]);
  const std::string record = internal::text_of(run + "/report.json");
  EXPECT_NE(record.find("\"finished\""), std::string::npos) << record;
  Words later = again;
  later.insert(later.end(), {"--lr", "1e-5"});
  const RunResult second = run_cleave(train(run, later));
  EXPECT_EQ(second.exit_code, 0);
  EXPECT_EQ(second.err, "");
  EXPECT_NE(second.out.find("\nresumed after step 2 "), std::string::npos) << second.out;
  EXPECT_EQ(internal::text_of(run + "/report.json"), record);  // it trained nothing
}

// File names hold any bytes; checkpoints and JSON output are UTF-8.
TEST(TrainProgram, NamesThatAreNotUtf8_AreTrainedAndPrintedAsJson) {
  const TempFolder folder;
  std::ofstream(folder / "tiny.json") << kTinyLlama;
  const std::string data = folder / "data\xff.txt", run = folder / "run\xff";
  std::filesystem::copy_file(test::source_file("LICENSE"), data);
  const Words flags{"--model", folder / "tiny.json", "--data", data, "--steps", "2"};
  ASSERT_EQ(run_cleave(train(run, flags)).exit_code, 0);
  EXPECT_EQ(metrics_of(run).size(), 2U);
  for (Words words : {Words{"inspect", run}, Words{"verify", "--model", run, "--layer", "lm_head"},
                      Words{"plan", "--model", run, "--cluster", "here", "--ranks", "2"}}) {
    words.emplace_back("--json");
    const RunResult ran = run_cleave(words);
    EXPECT_EQ(ran.exit_code, 0) << words[0] << ": " << ran.err;
    EXPECT_TRUE(json::accept(ran.out)) << ran.out;
  }
  // adapter_config.json names the base model, which a later command must find.
  const RunResult tuned =
      run_cleave(train(folder / "tuned", {"--model", run, "--lora", "2", "--steps", "1"}));
  EXPECT_EQ(tuned.exit_code, 2);
  EXPECT_NE(tuned.err.find(" is not UTF-8, and the files of an adapter name their base model; "),
            std::string::npos)
      << tuned.err;
}

// The text is tokenized into the run folder before its length is known.
TEST(TrainProgram, DataWithoutLabels_FailsAndLeavesAFolderInWhichOtherDataTrains) {
  const TempFolder folder;
  std::ofstream(folder / "tiny.json") << kTinyLlama;
  const auto run = [&](const char* labels) {
    std::ofstream(folder / "rows.jsonl") << R"({"input_ids": [1, 2], "labels": )" << labels << "}";
    return run_cleave({"train", "--model", folder / "tiny.json", "--data", folder / "rows.jsonl",
                       "--steps", "2", "--batch-size", "1", "--seq-len", "32", "--out",
                       folder / "run"});
  };
  const RunResult failed = run("[-100, -100]");
  EXPECT_EQ(failed.exit_code, 4) << failed.err;
  EXPECT_FALSE(std::filesystem::exists(folder / "run/latest"));
  const RunResult ran = run("[1, 2]");
  EXPECT_EQ(ran.exit_code, 0) << ran.err;
}

TEST(TrainProgram, StartThatFails_LeavesNothing) {
  const TempFolder folder;
  std::ofstream(folder / "short.txt") << "too short";
  std::ofstream(folder / "tiny.json") << kTinyLlama;
  const std::string model = folder / "tiny.json", data = folder / "short.txt";
  const Words short_data{"train",   "--model", model,       "--data", data,
                         "--steps", "2",       "--seq-len", "32",     "--out"};
  const auto with_out = [](Words words, const std::string& out) {
    words.push_back(out);
    return words;
  };
  const RunResult ran = run_cleave(with_out(short_data, folder / "new/deep/run/"));
  EXPECT_EQ(ran.exit_code, 2) << ran.err;
  EXPECT_FALSE(std::filesystem::exists(folder / "new"));
  // Two ranks, each of which makes the folder if it is missing.
  const RunResult two = run_cleave(launched(2, with_out(short_data, folder / "new/run")));
  EXPECT_EQ(two.exit_code, 2) << two.err;
  EXPECT_FALSE(std::filesystem::exists(folder / "new"));
  std::ofstream(folder / "out.json") << json{{"out", folder / "new/run"}};
  Words with_config(short_data.begin(), short_data.end() - 1);
  with_config.insert(with_config.end(), {"--config", folder / "out.json"});
  const RunResult from_config = run_cleave(launched(2, with_config));
  EXPECT_EQ(from_config.exit_code, 2) << from_config.err;
  EXPECT_FALSE(std::filesystem::exists(folder / "new"));
  // The launcher does not know the folder of a script, so the rank itself cleans up.
  Words script{"launch", "-n", "1", "--", "/usr/bin/env", test::program()};
  script.insert(script.end(), short_data.begin(), short_data.end());
  const RunResult from_script = run_cleave(with_out(script, folder / "new/run"));
  EXPECT_EQ(from_script.exit_code, 2) << from_script.err;
  EXPECT_FALSE(std::filesystem::exists(folder / "new"));
  // In the second file, when the tokens of the first are there.
  EXPECT_EQ(
      run_cleave(train(folder / "new/run", {"--model", model, "--steps", "2", "--eval-data", data}))
          .exit_code,
      2);
  EXPECT_FALSE(std::filesystem::exists(folder / "new"));
  // What was there before stays.
  std::filesystem::create_directories(folder / "own/tokens");
  std::ofstream(folder / "own/notes.txt") << "mine";
  EXPECT_EQ(run_cleave(with_out(short_data, folder / "own")).exit_code, 2);
  EXPECT_TRUE(std::filesystem::exists(folder / "own/tokens"));
  EXPECT_TRUE(std::filesystem::exists(folder / "own/notes.txt"));
  // So does a link to a disk that is not mounted.
  std::filesystem::create_symlink(folder / "disk/run", folder / "link");
  const RunResult linked = run_cleave(with_out(short_data, folder / "link"));
  EXPECT_EQ(linked.exit_code, 5);
  EXPECT_NE(linked.err.find("is a link to " + (folder / "disk/run").string() +
                            ", which is not there; make that folder, or mount its disk\n"),
            std::string::npos)
      << linked.err;
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "link"));
}

/// Runs a command and sends it `signal` once step 3 is in its metrics.
RunResult interrupted(const Words& words, const std::string& run, const std::string& signal) {
  const std::string script =
      "\"$0\" \"$@\" & pid=$!\n"
      "until grep -q '\"step\":3,' " +
      run +
      "/metrics.jsonl 2>/dev/null; do\n"
      "  kill -0 $pid 2>/dev/null || break\n"
      "done\n"
      "kill -" +
      signal + " $pid; wait $pid";
  Words all{"/bin/bash", "-c", script, test::program()};
  all.insert(all.end(), words.begin(), words.end());
  return run_program(all);
}

// Oracle: the unbroken run, to the last digit of its log.
TEST(TrainProgram, SignalThenResume_SavesAndContinuesBitForBit) {
  const TempFolder folder;
  const Words steps{"--tp", "2", "--steps", "40", "--model", "llama-15m"};
  const std::string whole = folder / "whole", part = folder / "part";
  ASSERT_EQ(run_cleave(train(whole, steps)).exit_code, 0);
  const RunResult stopped = interrupted(train(part, steps), part, "TERM");
  EXPECT_EQ(stopped.exit_code, 143) << stopped.err;
  EXPECT_NE(stopped.out.find("--resume"), std::string::npos) << stopped.out;
  EXPECT_EQ(stopped.err, "");
  const size_t reached = metrics_of(part).size();
  EXPECT_LT(reached, 40U);
  Words again = steps;
  again.emplace_back("--resume");
  const RunResult resumed = run_cleave(train(part, again));
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  const auto want = metrics_of(whole);
  const auto got = metrics_of(part);
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(got[i]["loss"], want[i]["loss"]) << "step " << i + 1;
    EXPECT_EQ(got[i]["grad_norm"], want[i]["grad_norm"]) << "step " << i + 1;
  }
}

// Oracle: the checkpoints of the run with synchronous saves.
TEST(TrainProgram, AsyncSaves_AreThoseOfSynchronousSaves) {
  const TempFolder folder;
  const Words saves{"--tp", "2", "--steps", "5", "--save-every", "2"};
  const std::string sync = folder / "sync", async = folder / "async";
  ASSERT_EQ(run_cleave(train(sync, saves)).exit_code, 0);
  Words words = saves;
  words.emplace_back("--async-save");
  const RunResult ran = run_cleave(train(async, words));
  ASSERT_EQ(ran.exit_code, 0) << ran.err;
  for (const char* step : {"step_00000002", "step_00000004", "step_00000005"}) {
    const std::string one = std::filesystem::path(sync) / step;
    const std::string other = std::filesystem::path(async) / step;
    const RunResult same = run_cleave({"diff", one, other});
    EXPECT_EQ(same.exit_code, 0) << step << ": " << same.out << same.err;
  }
}

TEST(TrainProgram, CheckpointOfOneLayout_GeneratesTheSameIdsOnOthers) {
  const TempFolder folder;
  const std::string run = folder / "run";
  ASSERT_EQ(run_cleave(train(run, {"--tp", "2", "--steps", "15", "--lr", "3e-3"})).exit_code, 0);
  std::string want;
  for (const std::string tp : {"1", "2", "3", "4"}) {
    const RunResult ran = run_cleave({"generate", "--model", run, "--prompt", "the Work", "--tp",
                                      tp, "--max-new-tokens", "12", "--json"});
    ASSERT_EQ(ran.exit_code, 0) << ran.err;
    const std::string ids = json::parse(ran.out)["sequences"][0]["ids"].dump();
    if (want.empty()) want = ids;
    EXPECT_EQ(ids, want) << "tp " << tp;
  }
}

TEST(TrainProgram, InvalidLayout_IsRefusedBeforeAnythingIsWritten) {
  const TempFolder folder;
  const std::string run = folder / "run";
  const RunResult ran = run_cleave(train(run, {"--tp", "16"}));
  EXPECT_EQ(ran.exit_code, 3);
  EXPECT_NE(ran.err.find("choose tp from 1 to 8"), std::string::npos) << ran.err;
  EXPECT_FALSE(std::filesystem::exists(run));
  const RunResult deep = run_cleave(train(run, {"--pp", "9"}));
  EXPECT_EQ(deep.exit_code, 3);
  EXPECT_NE(deep.err.find("6 "), std::string::npos) << deep.err;  // llama-tiny's blocks
  const RunResult both = run_cleave(train(run, {"--dp", "2", "--zero", "1", "--fsdp"}));
  EXPECT_EQ(both.exit_code, 2);
  EXPECT_FALSE(std::filesystem::exists(run));
}

/// A model of 1.6e12 weights, 23 TiB with gradients and moments.
std::string huge_model(const TempFolder& folder) {
  std::string text = kTinyLlama;
  text.replace(text.find("\"hidden_size\":24"), 16, "\"hidden_size\":262144");
  text.replace(text.find("\"intermediate_size\":20"), 22, "\"intermediate_size\":1000000");
  text.replace(text.find("\"head_dim\":4"), 12, "\"head_dim\":64");
  std::ofstream(folder / "huge.json") << text;
  return folder / "huge.json";
}

// Under launch each rank counts both; one line is printed.
TEST(TrainProgram, RunThatDoesNotFitIntoMemory_IsRefusedBeforeAnythingIsWritten) {
  const TempFolder folder;
  const Words words =
      train(folder / "new/run", {"--model", huge_model(folder), "--dp", "2", "--steps", "1"});
  for (const RunResult& ran : {run_cleave(words), run_cleave(launched(2, words))}) {
    EXPECT_EQ(ran.exit_code, 10) << ran.err;
    EXPECT_NE(ran.err.find("the 2 ranks on this host need about 4"), std::string::npos) << ran.err;
    EXPECT_NE(ran.err.find(" TiB of memory, and "), std::string::npos) << ran.err;
    EXPECT_NE(ran.err.find("; no layout, --micro-batch-size, --recompute or --dtype fits: "),
              std::string::npos)
        << ran.err;
    EXPECT_TRUE(ran.err.ends_with("; --over-commit starts it anyway\n")) << ran.err;
    EXPECT_EQ(std::count(ran.err.begin(), ran.err.end(), '\n'), 1) << ran.err;
    EXPECT_FALSE(std::filesystem::exists(folder / "new"));
  }
}

// The limit of the address space ends the run at its first large tensor.
TEST(TrainProgram, OverCommit_StartsARunThatDoesNotFit) {
  const TempFolder folder;
  std::string command = std::string("ulimit -v 4000000; exec ") + test::program();
  for (const std::string& word :
       train(folder / "new/run", {"--model", huge_model(folder), "--over-commit"})) {
    command += " " + word;
  }
  const RunResult ran = run_program({"/bin/bash", "-c", command});
  EXPECT_EQ(ran.exit_code, 10) << ran.err;
  EXPECT_TRUE(ran.out.starts_with("memory  at most ")) << ran.out;
  EXPECT_EQ(ran.err.find("--over-commit"), std::string::npos) << ran.err;
  EXPECT_FALSE(std::filesystem::exists(folder / "new"));
}

/// Runs cleave WORDS with a private file system of `size` at `folder`; exit code 77 if this user
/// may not mount one.
RunResult run_on_small_disk(const std::string& folder, const std::string& size,
                            const Words& words) {
  const std::string script = "mount -t tmpfs -o size=" + size + " none '" + folder +
                             "' || exit 77; \"$@\"; code=$?; ls '" + folder + "'; exit $code";
  Words all{"/usr/bin/env", "unshare", "-m", "sh", "-c", script, "sh", test::program()};
  all.insert(all.end(), words.begin(), words.end());
  return run_program(all);
}

// A checkpoint of 22 thousand weights and their moments is 260 KB: 3 fit on the disk, 10 do not.
TEST(TrainProgram, DiskThatIsTooSmall_IsReportedBeforeTheFirstStep) {
  const TempFolder folder;
  const std::string config = folder / "tiny.json", disk = folder / "disk";
  std::ofstream(config) << kTinyLlama;
  std::filesystem::create_directory(disk);
  const auto run = [&](const std::string& size, Words more) {
    more.insert(more.end(), {"--model", config, "--steps", "10", "--save-every", "1"});
    return run_on_small_disk(disk, size, train(disk + "/run", more));
  };
  const RunResult most = run("1600k", {});
  if (most.exit_code == 77 || most.err.find("unshare") != std::string::npos) {
    GTEST_SKIP() << "needs the right to mount a file system";
  }
  EXPECT_EQ(most.exit_code, 5) << most.err;
  EXPECT_NE(most.err.find("10 checkpoints of "), std::string::npos) << most.err;
  EXPECT_NE(most.err.find("give --out a folder on another disk, or keep fewer"), std::string::npos)
      << most.err;
  EXPECT_EQ(most.out.find("step "), std::string::npos) << most.out;
  const RunResult fewer = run("1600k", {"--keep-last", "2"});
  EXPECT_EQ(fewer.exit_code, 0) << fewer.err;
  const RunResult none = run("200k", {"--keep-last", "1"});
  EXPECT_EQ(none.exit_code, 5) << none.err;
  EXPECT_NE(none.err.find("2 checkpoints of "), std::string::npos) << none.err;
}

TEST(PlanProgram, Layouts_AreShownListedAndDrawn) {
  const TempFolder folder;
  const RunResult one = run_cleave({"plan", "--tp", "2", "--json"});
  ASSERT_EQ(one.exit_code, 0) << one.err;
  const json facts = json::parse(one.out);
  EXPECT_EQ(facts["tp"], 2);
  EXPECT_GT(facts["ranks"][0]["bytes"].get<int64_t>(), 0);
  EXPECT_GT(facts["step_s"].get<double>(), 0);
  const RunResult many = run_cleave({"plan", "--ranks", "4", "--json"});
  ASSERT_EQ(many.exit_code, 0) << many.err;
  for (const json& each : json::parse(many.out)) {
    EXPECT_EQ(each["tp"].get<int>() * each["pp"].get<int>() * each["dp"].get<int>(), 4);
  }
  const std::string svg = folder / "schedule.svg";
  const RunResult drawn = run_cleave({"plan", "--pp", "2", "--draw-schedule", svg});
  ASSERT_EQ(drawn.exit_code, 0) << drawn.err;
  std::ifstream file(svg);
  std::string start(4, ' ');
  file.read(start.data(), 4);
  EXPECT_EQ(start, "<svg");
  EXPECT_EQ(run_cleave({"plan", "--ranks", "4", "--tp", "2"}).exit_code, 2);
  EXPECT_EQ(run_cleave({"plan", "--ranks", "4", "--memory", "much"}).exit_code, 2);
}

// Adam has 8 bytes for each trained element: fewer than for a tenth of the weights.
TEST(PlanProgram, Adapters_AreForecast) {
  const RunResult one = run_cleave({"plan", "--lora", "2", "--lora-base", "int8", "--json"});
  ASSERT_EQ(one.exit_code, 0) << one.err;
  const json rank = json::parse(one.out)["ranks"][0];
  const RunResult whole = run_cleave({"plan", "--json"});
  const json of_whole = json::parse(whole.out)["ranks"][0];
  EXPECT_GT(rank["optimizer"].get<int64_t>(), 0);
  EXPECT_LT(rank["optimizer"].get<int64_t>(), of_whole["optimizer"].get<int64_t>() / 10);
  EXPECT_LT(rank["weights"].get<int64_t>(), of_whole["weights"].get<int64_t>());
  const RunResult many = run_cleave({"plan", "--lora", "2", "--ranks", "2", "--json"});
  ASSERT_EQ(many.exit_code, 0) << many.err;
  for (const json& each : json::parse(many.out)) {
    EXPECT_NE(each["layout"].get<std::string>().find("LoRA of rank 2"), std::string::npos);
  }
  EXPECT_EQ(run_cleave({"plan", "--dora"}).exit_code, 2);
}

TEST(PlanProgram, MemoryWithoutAUnit_IsRefused) {
  const RunResult ran = run_cleave({"plan", "--memory", "8"});
  EXPECT_EQ(ran.exit_code, 2);
  EXPECT_EQ(ran.err, "cleave: --memory 8 is 8 bytes; did you mean 8GB?\n");
}

TEST(PlanProgram, Cluster_ListsTheBestLayoutsOfItsDevices) {
  const Words words{"plan",      "--model",      "llama2-7b", "--ranks", "64",   "--cluster",
                    "a100-80gb", "--tokens",     "1T",        "--dtype", "bf16", "--seq-len",
                    "4096",      "--batch-size", "256",       "--json"};
  const RunResult ran = run_cleave(words);
  ASSERT_EQ(ran.exit_code, 0) << ran.err;
  const json all = json::parse(ran.out);
  ASSERT_EQ(all["layouts"].size(), 10U);
  EXPECT_EQ(all["command"],
            "cleave train --model llama2-7b --data FILES --out DIR --batch-size 256 --seq-len 4096 "
            "--dtype bf16 --device cuda " +
                all["layouts"][0]["flags"].get<std::string>());
  for (const json& each : all["layouts"]) {
    EXPECT_EQ(each["tp"].get<int>() * each["pp"].get<int>() * each["dp"].get<int>(), 64);
    double seconds = 0, bytes = 0;
    for (const auto& kind : each["time"]) seconds += kind.get<double>();
    for (const auto& kind : each["memory"]) bytes += kind.get<double>();
    EXPECT_NEAR(seconds, each["step_s"].get<double>(), 1e-9 * seconds);
    EXPECT_GT(each["time"]["gemm"].get<double>(), 0);
    EXPECT_NEAR(bytes, each["bytes"].get<double>(), 1e-9 * bytes);
    EXPECT_NEAR(each["tokens_per_s"].get<double>() * each["step_s"].get<double>(), 256 * 4096, 1);
    EXPECT_NEAR(each["days"].get<double>() * 24 * 64, each["device_hours"].get<double>(), 1);
  }
  const RunResult fixed =
      run_cleave({"plan", "--model", "llama2-7b", "--cluster", "h200", "--tp", "4", "--pp", "1",
                  "--dp", "16", "--batch-size", "64", "--fsdp", "--json"});
  ASSERT_EQ(fixed.exit_code, 0) << fixed.err;
  const json chosen = json::parse(fixed.out);
  EXPECT_EQ(chosen["ranks"], 64);
  for (const json& each : chosen["layouts"]) {
    EXPECT_EQ(each["flags"].get<std::string>().rfind("--tp 4 --pp 1 --dp 16 ", 0), 0U);
    EXPECT_EQ(each["sharding"], "fsdp");
  }
  EXPECT_EQ(run_cleave({"plan", "--ranks", "8", "--cluster", "h300"}).exit_code, 2);
  EXPECT_EQ(run_cleave({"plan", "--ranks", "8", "--cluster", "none.json"}).exit_code, 5);
  const TempFolder folder;
  std::ofstream(folder / "cluster.json") << R"({"base": "h200", "memory": "much"})";
  const RunResult wrong =
      run_cleave({"plan", "--ranks", "8", "--cluster", folder / "cluster.json"});
  EXPECT_EQ(wrong.exit_code, 4);
  EXPECT_NE(wrong.err.find("expected a size such as 80GB, 80GiB or 80G"), std::string::npos)
      << wrong.err;
}

TEST(PlanProgram, ThisHost_IsACluster) {
  const RunResult ran =
      run_cleave({"plan", "--ranks", "2", "--cluster", "here", "--batch-size", "8", "--json"});
  ASSERT_EQ(ran.exit_code, 0) << ran.err;
  const json all = json::parse(ran.out);
  ASSERT_FALSE(all["layouts"].empty());
  EXPECT_GT(all["layouts"][0]["step_s"].get<double>(), 0);
}

TEST(PlanProgram, ScheduleWithoutAPipeline_IsWarnedAbout) {
  const RunResult ran = run_cleave({"plan", "--schedule-pp", "gpipe"});
  EXPECT_EQ(ran.exit_code, 0);
  EXPECT_EQ(ran.err,
            "cleave: warning: --schedule-pp gpipe orders a pipeline's work and pp=1: it has no "
            "effect; give --pp 2 or more\n");
  EXPECT_EQ(run_cleave({"plan", "--schedule-pp", "gpipe", "--pp", "2"}).err, "");
}

TEST(PlanProgram, ShardingOverTp1_IsWarnedAbout) {
  const TempFolder folder;
  const std::string plan = folder / "plan.json";
  std::ofstream(plan) << R"({"model.layers.*.mlp.{gate,up}_proj": {"style": "colwise"},
                             "model.layers.*.mlp.down_proj": {"style": "rowwise"}})";
  const std::string rest =
      " shards over tensor-parallel ranks and tp=1: nothing is sharded; give --tp 2 or more\n";
  EXPECT_EQ(run_cleave({"plan", "--sequence-parallel"}).err,
            "cleave: warning: --sequence-parallel" + rest);
  const RunResult of_plan = run_cleave({"plan", "--model", "llama-tiny", "--plan", plan});
  EXPECT_EQ(of_plan.exit_code, 0);
  EXPECT_EQ(of_plan.err, "cleave: warning: --plan" + rest);
  EXPECT_EQ(run_cleave({"plan", "--sequence-parallel", "--tp", "2"}).err, "");
}

TEST(TrainProgram, MoreThreadsThanCores_AreNotCalledCores) {
  const TempFolder folder;
  const RunResult ran = run_cleave(train(
      folder / "run", {"--steps", "0", "--model", "llama-tiny", "--threads-per-rank", "999"}));
  EXPECT_EQ(ran.exit_code, 0) << ran.err;
  EXPECT_NE(ran.out.find(" 999 threads each on "), std::string::npos) << ran.out;
}

// Oracle: the bytes in the --json output for the same layout.
TEST(PlanProgram, LayoutAboveTheLimit_IsCalledTooLarge) {
  const RunResult facts = run_cleave({"plan", "--tp", "2", "--json"});
  const auto bytes = json::parse(facts.out)["ranks"][0]["bytes"].get<int64_t>();
  const RunResult fits = run_cleave({"plan", "--tp", "2", "--memory", std::to_string(bytes)});
  EXPECT_EQ(fits.out.find("too large"), std::string::npos) << fits.out;
  const RunResult large = run_cleave({"plan", "--tp", "2", "--memory", "1MiB"});
  EXPECT_EQ(large.exit_code, 0) << large.err;
  EXPECT_NE(large.out.find("\ntoo large: a rank may take 1.0 MiB\n"), std::string::npos)
      << large.out;
  const RunResult list = run_cleave({"plan", "--ranks", "2", "--memory", "1MiB"});
  EXPECT_NE(list.out.find("tp=2 x dp=1: too large\n"), std::string::npos) << list.out;
}

}  // namespace
}  // namespace cleave::test
