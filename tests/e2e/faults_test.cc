// Messages and exit codes of a training run after a fault: the program under `cleave launch`.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/level.h"
#include "tests/support/paths.h"
#include "tests/support/program.h"
#include "tests/support/terminal_program.h"
#include "tests/support/train_program.h"

namespace cleave::test {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using Words = std::vector<std::string>;

Words train_tiny(const std::string& out, const Words& more = {}) {
  const std::string model = out + ".json";
  std::ofstream(model) << kTinyLlama;
  Words words = train(out, {"--model", model});
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

Words launched(const Words& words, const Words& flags = {}) {
  Words all{"launch", "-n", "2"};
  all.insert(all.end(), flags.begin(), flags.end());
  all.insert(all.end(), {"--", test::program()});
  all.insert(all.end(), words.begin(), words.end());
  return all;
}

/// Runs cleave WORDS and, at the same time, the shell script `fault`: $pid is the program's, `steps
/// N` waits until N steps are in the metrics of `run`, and `child N` is the pid of the Nth child.
/// `before` runs first and may use the same words.
RunResult with_fault(const Words& words, const std::string& run, const std::string& fault,
                     const std::string& before = "") {
  const std::string script =
      before +
      "\n\"$0\" \"$@\" & pid=$!\n"
      "steps() { until [ \"$(cat " +
      run +
      "/metrics.jsonl 2>/dev/null | wc -l)\" -ge $1 ]; do kill -0 $pid 2>/dev/null || return; "
      "sleep 0.01; done; }\n"
      "child() { cat /proc/$pid/task/*/children | tr ' ' '\\n' | grep . | sort -n | sed -n ${1}p; "
      "}\n" +
      fault + "\nwait $pid";
  Words all{"/bin/bash", "-c", script, test::program()};
  all.insert(all.end(), words.begin(), words.end());
  return run_program(all);
}

int64_t num_lines(const std::string& text) {
  return std::count(text.begin(), text.end(), '\n');
}

// Row R1: the printed command resumes the run.
TEST(Faults, KilledRank_IsReportedInAFewLinesWithTheCommandToResume) {
  const TempFolder folder;
  const std::string run = folder / "run";
  const RunResult ran = with_fault(
      launched(train_tiny(
          run, {"--tp", "2", "--steps", "100000", "--save-every", "2", "--keep-last", "2"})),
      run, "steps 5; kill -9 $(child 2)");
  EXPECT_EQ(ran.exit_code, 137);
  EXPECT_LE(num_lines(ran.err), 6) << ran.err;
  EXPECT_THAT(ran.err, ContainsRegex("rank 1 \\(pid [0-9]+\\) was killed by signal 9 .* on axis .* "
                                     "in step [0-9]+\n"));
  const size_t at = ran.err.find("resume: ");
  ASSERT_NE(at, std::string::npos) << ran.err;
  std::string command = ran.err.substr(at + 8, ran.err.find('\n', at) - at - 8);
  const std::string steps = "--steps 100000";
  ASSERT_NE(command.find(steps), std::string::npos) << command;
  EXPECT_THAT(command, testing::StartsWith(test::program() + " launch -n 2 -- " + test::program() +
                                           " train "));
  command.replace(command.find(steps), steps.size(), "--steps 40");
  const RunResult again = run_program({"/bin/bash", "-c", command});
  // The run may have passed 40 steps; then nothing is left to do.
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_THAT(again.out, HasSubstr("resumed after step "));
}

// A long command (a shell's glob) is not truncated in the middle of a word.
TEST(Faults, KilledRankOfALongCommand_IsReportedWithAShortCommandToResume) {
  const TempFolder folder;
  const std::string run = folder / "run";
  Words words = launched(
      train_tiny(run, {"--tp", "2", "--steps", "100000", "--save-every", "1", "--keep-last", "1"}));
  const auto data = std::find(words.begin(), words.end(), "--data") + 1;
  words.insert(data, 1000 / data->size() + 1, std::string(*data));
  const RunResult ran = with_fault(words, run, "steps 3; kill -9 $(child 2)");
  EXPECT_EQ(ran.exit_code, 137);
  EXPECT_THAT(ran.err, HasSubstr("resume: the same command with --resume\n"));
}

// Oracle: the metrics of the second start, which begin with step 1 again.
TEST(Faults, RankKilledBeforeTheFirstCheckpoint_LeavesAFolderToStartInAgain) {
  const TempFolder folder;
  const std::string run = folder / "run";
  const RunResult ran = with_fault(launched(train_tiny(run, {"--tp", "2", "--steps", "100000"})),
                                   run, "steps 5; kill -9 $(child 2)");
  EXPECT_EQ(ran.exit_code, 137);
  EXPECT_THAT(ran.err, Not(HasSubstr("resume")));
  EXPECT_GE(metrics_of(run).size(), 5U);
  const RunResult again = run_cleave(launched(train_tiny(run, {"--tp", "2", "--steps", "3"})));
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(metrics_of(run).size(), 3U);
  EXPECT_TRUE(std::filesystem::exists(run + "/step_00000003"));
}

// In a first step of some seconds, 200 micro-batches, when the folder is locked and the metrics are
// empty. No rank can clean up: the launcher does.
TEST(Faults, RanksKilledBeforeTheFirstStep_LeaveNothing) {
  const TempFolder folder;
  const std::string run = folder / "new/run";
  const Words words = train(run, {"--model", "llama-tiny", "--tp", "2", "--steps", "2",
                                  "--batch-size", "200", "--micro-batch-size", "1"});
  const RunResult ran = with_fault(launched(words), run,
                                   "until [ -s " + run +
                                       "/.lock ]; do kill -0 $pid || break; done; "
                                       "kill -9 $(child 1) $(child 2)");
  EXPECT_EQ(ran.exit_code, 137) << ran.err;
  EXPECT_FALSE(std::filesystem::exists(folder / "new"));
}

// Without a launcher, which would exit with 137 for the whole job.
TEST(Faults, KilledRankWithoutLauncher_EndsTheOtherWith6) {
  const TempFolder folder;
  const std::string run = folder / "run";
  const RunResult ran =
      with_fault(train_tiny(run, {"--tp", "2", "--steps", "100000"}), run, "steps 3; kill -9 $one",
                 "export RANK=0 WORLD_SIZE=2 MASTER_PORT=$((20000 + $$ % 10000))\n"
                 "RANK=1 \"$0\" \"$@\" & one=$!");
  EXPECT_EQ(ran.exit_code, 6) << ran.err;
  EXPECT_THAT(ran.err, ContainsRegex("rank 1 \\(pid [0-9]+\\) died .* on axis "));
}

// Oracle: the unbroken run's checkpoint, tensor by tensor.
TEST(Faults, RestartsOfTheLauncher_EndWithTheBitsOfTheUnbrokenRun) {
  const TempFolder folder;
  const Words flags{"--dp",         "2",  "--zero", "1", "--steps",     "200",
                    "--save-every", "20", "--seed", "3", "--keep-last", "2"};
  const std::string whole = folder / "whole", part = folder / "part";
  ASSERT_EQ(run_cleave(launched(train_tiny(whole, flags))).exit_code, 0);
  const RunResult ran =
      with_fault(launched(train_tiny(part, flags), {"--max-restarts", "2"}), part,
                 "steps 12; kill -9 $(child 1); sleep 0.5; steps 60; kill -9 $(child 2)");
  EXPECT_EQ(ran.exit_code, 0) << ran.err;
  EXPECT_THAT(ran.err,
              ContainsRegex("^cleave: restart 1 of 2: rank 0 \\(pid [0-9]+\\) was killed by "
                            "signal 9 [^\n]*\n(cleave: restart 2 of 2: rank 1 [^\n]*\n)?$"))
      << "the second kill may come after the end";
  const RunResult same = run_cleave({"diff", whole + "/step_00000200", part + "/step_00000200"});
  EXPECT_EQ(same.exit_code, 0) << same.out << same.err;
}

// Row R4, under the launcher.
// torchrun starts a refused command again, as a restart. Without the note of the refusal that would
// resume the run in the folder, with other options.
TEST(Faults, StartThatIsRefusedUnderTorchrun_IsRefusedWhenItIsRestarted) {
  const TempFolder folder;
  const std::string run = folder / "run";
  ASSERT_EQ(run_cleave(train_tiny(run, {"--steps", "2"})).exit_code, 0);
  const auto start = [&](const std::string& restarts, const Words& more) {
    return run_cleave(
        train_tiny(run, more),
        {.environment = {"TORCHELASTIC_RUN_ID=none", "TORCHELASTIC_RESTART_COUNT=" + restarts,
                         "RANK=0", "WORLD_SIZE=1", "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=1"}});
  };
  for (const char* restarts : {"0", "1", "2"}) {
    const RunResult ran = start(restarts, {"--steps", "9"});
    EXPECT_EQ(ran.exit_code, 2) << restarts;
    EXPECT_THAT(ran.err, HasSubstr("already holds a run (step_00000002); resume it with --resume"));
  }
  EXPECT_EQ(metrics_of(run).size(), 2U);
  // A job that was not refused is restarted as before.
  EXPECT_EQ(start("0", {"--steps", "4", "--resume"}).exit_code, 0);
  EXPECT_EQ(start("1", {"--steps", "9"}).exit_code, 0);
  EXPECT_EQ(metrics_of(run).size(), 9U);
}

// The printed command to resume has the --model of the first start. Oracle: a run that still has
// it.
TEST(Faults, ModelFolderThatIsGone_IsNotNeededToResume) {
  const TempFolder folder;
  const std::string model = folder / "model", run = folder / "run", whole = folder / "whole";
  ASSERT_EQ(run_cleave(train_tiny(model, {"--steps", "1"})).exit_code, 0);
  const Words flags{"--model", model, "--lr", "1e-2", "--steps"};
  const auto with = [&](const std::string& out, const Words& more) {
    Words words = train(out, flags);
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  for (const std::string& out : {run, whole}) {
    ASSERT_EQ(run_cleave(with(out, {"3"})).exit_code, 0);
  }
  ASSERT_EQ(run_cleave(with(whole, {"6", "--resume"})).exit_code, 0);
  std::filesystem::remove_all(model);
  const RunResult ran = run_cleave(with(run, {"6", "--resume"}));
  ASSERT_EQ(ran.exit_code, 0) << ran.err;
  ASSERT_EQ(metrics_of(run).size(), 6U);
  EXPECT_EQ(metrics_of(run).back()["loss"], metrics_of(whole).back()["loss"]);
  // A new run needs it.
  EXPECT_EQ(run_cleave(with(folder / "new", {"3"})).exit_code, 5);
}

TEST(Faults, SigintToTheLauncher_SavesAndEndsWith130) {
  const TempFolder folder;
  const std::string run = folder / "run";
  const RunResult ran = with_fault(launched(train_tiny(run, {"--tp", "2", "--steps", "100000"})),
                                   run, "steps 3; kill -INT $pid");
  EXPECT_EQ(ran.exit_code, 130);
  EXPECT_EQ(ran.err, "");
  EXPECT_TRUE(std::filesystem::exists(run + "/latest"));
  EXPECT_THAT(ran.out, HasSubstr("resume with: " + test::program() + " launch -n 2 -- "));
}

// Row R4: the lines that follow cannot be written any more.
TEST(Faults, ClosedTerminal_SavesAndEndsWith129) {
  const TempFolder folder;
  for (const bool is_launched : {false, true}) {
    const std::string run = folder / (is_launched ? "launched" : "alone");
    Words words = train_tiny(run, {"--tp", "2", "--steps", "100000"});
    if (is_launched) words = launched(words);
    words.insert(words.begin(), {"/usr/bin/env", "TERM=xterm", test::program()});
    TerminalProgram program(words);
    const double start = monotonic_s();
    while (num_lines(internal::text_of(run + "/metrics.jsonl")) < 3) {
      ASSERT_LT(monotonic_s() - start, kProgramDeadlineS);
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    program.hang_up();
    EXPECT_EQ(program.wait(), 129);
    EXPECT_TRUE(std::filesystem::exists(run + "/latest"));
  }
}

// Row R4. $line: the steps before the signal.
TEST(Faults, HangupUnderNohup_DoesNotEndTheRun) {
  const TempFolder folder;
  for (const bool is_launched : {false, true}) {
    const std::string run = folder / (is_launched ? "launched" : "alone");
    Words words = train_tiny(run, {"--tp", "2", "--steps", "100000"});
    if (is_launched) words = launched(words);
    const RunResult ran = with_fault(words, run,
                                     "steps 3; line=$(cat " + run +
                                         "/metrics.jsonl | wc -l); kill -HUP $pid; "
                                         "steps $((line + 100)); kill -TERM $pid",
                                     "trap '' HUP");
    EXPECT_EQ(ran.exit_code, 143) << ran.err;
    EXPECT_GE(metrics_of(run).size(), 103U);
  }
}

// Row R4: Ctrl-C ends the `tee` of `cleave train | tee log`, too.
TEST(Faults, SignalThatAlsoEndsTheReader_SavesAndEndsWith130) {
  const TempFolder folder;
  for (const bool is_launched : {false, true}) {
    const std::string run = folder / (is_launched ? "launched" : "alone");
    Words words = train_tiny(run, {"--tp", "2", "--steps", "100000"});
    if (is_launched) words = launched(words);
    const RunResult ran = with_fault(words, run, "steps 3; kill -INT $pid; kill -9 $reader",
                                     "exec > >(exec cat >/dev/null); reader=$!");
    EXPECT_EQ(ran.exit_code, 130) << ran.err;
    EXPECT_TRUE(std::filesystem::exists(run + "/latest"));
  }
}

// Row R4: `timeout` sends its signal to the program and then to its process group.
TEST(Faults, SignalThatComesTwiceInAMoment_SavesLikeOne) {
  const TempFolder folder;
  const std::string run = folder / "run";
  const RunResult ran =
      with_fault(train_tiny(run, {"--tp", "2", "--steps", "100000"}), run,
                 "steps 3; kill -INT $pid; sleep 0.02; kill -INT $pid 2>/dev/null");
  EXPECT_EQ(ran.exit_code, 130) << ran.err;
  EXPECT_TRUE(std::filesystem::exists(run + "/latest"));
  EXPECT_THAT(ran.out, HasSubstr("resume with: "));
}

// Row R15: `cleave train | head -1`, with threads and with processes; no process is left.
TEST(Faults, ReaderOfATrainingRunThatLeaves_EndsItWith141) {
  const TempFolder folder;
  for (const bool is_launched : {false, true}) {
    const std::string run = folder / (is_launched ? "launched" : "alone");
    Words words = train_tiny(run, {"--tp", "2", "--steps", "100000"});
    if (is_launched) words = launched(words);
    std::string command = test::program();
    for (const std::string& word : words) command += " " + word;
    const RunResult ran =
        run_program({"/bin/bash", "-c", command + " | head -1; echo ${PIPESTATUS[0]}"});
    EXPECT_THAT(ran.out, testing::EndsWith("\n141\n"));
    EXPECT_EQ(ran.err, "");
    const RunResult left =
        run_program({"/bin/bash", "-c", "pgrep -c -f -- '[-]-out " + run + " '"});
    EXPECT_EQ(left.out, "0\n");
  }
}

// Row R15: a reader that keeps the pipe open but reads nothing is reported as a timeout, like a
// rank that hangs.
TEST(Faults, ReaderThatReadsNothing_IsATimeoutAndNoHang) {
  const TempFolder folder;
  const std::string pipe = folder / "pipe";
  for (const bool is_launched : {false, true}) {
    const std::string run = folder / (is_launched ? "launched" : "alone");
    Words words = train_tiny(run, {"--tp", "2", "--steps", "100000", "--timeout", "1"});
    if (is_launched) words = launched(words);
    std::string command = test::program();
    for (const std::string& word : words) command += " " + word;
    const std::string fills = "rm -f " + pipe + "; mkfifo " + pipe + "; exec 3<>" + pipe +
                              "; head -c 65536 /dev/zero >&3; ";
    const RunResult ran = run_program({"/bin/bash", "-c", fills + command + " >&3"});
    EXPECT_EQ(ran.exit_code, 7) << ran.err;
    EXPECT_THAT(ran.err,
                ContainsRegex("timeout of 1 s: rank 1 waits in .* for rank 0; rank 0 is "));
    EXPECT_LE(num_lines(ran.err), 6) << ran.err;
    const RunResult left =
        run_program({"/bin/bash", "-c", "pgrep -c -f -- '[-]-out " + run + " '"});
    EXPECT_EQ(left.out, "0\n");
  }
}

// Row R15: a file must not get the descriptor of a closed stdout, and with it the printed lines.
TEST(Faults, ClosedStdout_IsNotReusedForAFile) {
  const TempFolder folder;
  const std::string run = folder / "run";
  const RunResult ran =
      with_fault(train_tiny(run, {"--steps", "100000"}), run,
                 "steps 3; readlink /proc/$pid/fd/1 >&5; kill -TERM $pid", "exec 5>&1 >&-");
  EXPECT_EQ(ran.exit_code, 143) << ran.err;
  EXPECT_EQ(ran.out, "/dev/null\n");
  EXPECT_TRUE(std::filesystem::exists(run + "/latest"));
}

// Row R13: at any memory limit, an error line and its exit code, never a signal.
TEST(Faults, LimitsOnMemory_AreReportedAndNeverCrash) {
  const TempFolder folder;
  const int num_sizes = num_rounds(20);
  int num_refused = 0;
  for (int i = 0; i < num_sizes; ++i) {
    const int mebibytes = 300 + 700 * i / num_sizes;
    const std::string run = folder / ("run" + std::to_string(i));
    std::string command =
        "ulimit -v " + std::to_string(mebibytes * 1024) + "; exec " + test::program();
    for (const std::string& word :
         train_tiny(run, {"--tp", "2", "--steps", "2", "--timeout", "5"})) {
      command += " " + word;
    }
    const RunResult ran = run_program({"/bin/bash", "-c", command});
    EXPECT_TRUE(ran.exit_code == 0 || ran.exit_code == 10)
        << mebibytes << " MiB: exit " << ran.exit_code << ": " << ran.err;
    EXPECT_LE(num_lines(ran.err), 2) << ran.err;
    num_refused += ran.exit_code == 10;
  }
  EXPECT_GT(num_refused, 0);
  note_measured("R13 ", num_sizes, " limits on memory: ", num_refused,
                " reported, the others sufficient");
}

// Row R13: the memory of 160 million weights and moments is reported before it runs out.
TEST(Faults, ModelThatIsTooLarge_IsReportedWithItsMemory) {
  const TempFolder folder;
  std::string large = kTinyLlama;
  const auto replace = [&](const std::string& from, const std::string& to) {
    large.replace(large.find(from), from.size(), to);
  };
  replace("\"hidden_size\":24", "\"hidden_size\":2048");
  replace("\"intermediate_size\":20", "\"intermediate_size\":4096");
  replace("\"num_hidden_layers\":2", "\"num_hidden_layers\":4");
  replace("\"num_attention_heads\":6,\"num_key_value_heads\":2,\n\"head_dim\":4,",
          "\"num_attention_heads\":32,");
  std::ofstream(folder / "large.json") << large;
  std::string command = std::string("ulimit -v 1500000; exec ") + test::program();
  for (const std::string& word : train(folder / "run", {"--model", folder / "large.json"})) {
    command += " " + word;
  }
  const RunResult ran = run_program({"/bin/bash", "-c", command});
  EXPECT_EQ(ran.exit_code, 10) << ran.err;
  EXPECT_THAT(ran.out, testing::MatchesRegex("memory  at most [2-4].[0-9] GiB per rank\n"));
}

// Row R5, and the flight log that the message names.
TEST(Faults, StoppedRank_IsShownByDoctorFromTheFlightLog) {
  const TempFolder folder;
  const std::string run = folder / "run";
  const RunResult ran =
      with_fault(launched(train_tiny(run, {"--tp", "2", "--steps", "100000", "--timeout", "1"})),
                 run, "steps 3; kill -STOP $(child 2)");
  EXPECT_EQ(ran.exit_code, 7);
  EXPECT_LE(num_lines(ran.err), 6) << ran.err;
  const size_t at = ran.err.find("flight log: ");
  ASSERT_NE(at, std::string::npos) << ran.err;
  const std::string path = ran.err.substr(at + 12, ran.err.find('\n', at) - at - 12);
  EXPECT_TRUE(path.starts_with(run)) << path;
  const RunResult text = run_cleave({"doctor", "--flight", path});
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_THAT(text.out, ContainsRegex("\nstuck   rank 1 \\(pid [0-9]+, step [0-9]+\\) is "
                                      "(after|in) .* on axis .*; rank 0 waits for it\n"));
  EXPECT_THAT(text.out, ContainsRegex("\nrank 0, last 8 of [0-9]+ operations\n"));
  const RunResult json = run_cleave({"doctor", "--flight", path, "--json"});
  EXPECT_THAT(json.out, HasSubstr("\"stuck\":[1]"));
}

/// Runs `script` in one shell per rank, of two: it may use $RANK, and has the arguments of a small
/// run as "$@".
RunResult launched_by_script(const std::string& run, const std::string& script) {
  Words words{"launch", "-n", "2", "--", "/bin/bash", "-c", script, "x", test::program()};
  const Words trained = train(run, {"--dp", "2", "--steps", "2"});
  words.insert(words.end(), trained.begin(), trained.end());
  return run_cleave(words);
}

/// Writes two models with different weights and without manifests. Returns their folders' common
/// prefix; the rank follows it.
std::string models_that_differ(const TempFolder& folder) {
  const std::string name = folder / "model.";
  for (const char* seed : {"0", "1"}) {
    const std::filesystem::path run = folder / str("run.", seed), model = name + seed;
    const RunResult ran = run_cleave(train_tiny(run, {"--steps", "1", "--seed", seed}));
    EXPECT_EQ(ran.exit_code, 0) << ran.err;
    std::filesystem::create_directory(model);
    for (const char* file : {"config.json", "model.safetensors", "tokenizer.json"}) {
      std::filesystem::copy(run / "step_00000001" / file, model / file);
    }
  }
  return name;
}

// Row R9: otherwise replicas with, say, different learning rates would differ from the first step.
TEST(Faults, RanksWithDifferentOptions_EndWith3AndBothValues) {
  const TempFolder folder;
  std::string other = kTinyLlama;
  other.replace(other.find("\"num_hidden_layers\":2"), 21, "\"num_hidden_layers\":3");
  for (const char* name : {"0.json", "1.json", "0.txt", "1.txt", "same.json"}) {
    std::ofstream(folder / name) << (name[0] == '1' ? other : kTinyLlama);
  }
  const std::string model = " --model " + (folder / "same.json").string();
  const std::pair<std::string, std::string> cases[] = {
      {" --model " + models_that_differ(folder) + "$RANK",
       "rank 1 has weights with checksum [0-9a-f]+, rank 0 [0-9a-f]+"},
      {" --model " + (folder / "$RANK.json").string(),
       "rank 1 has config.json's num_hidden_layers 3, rank 0 2"},
      {model + " --lr 0.00$((3 + RANK))", "rank 1 has --lr 0.004, rank 0 0.003"},
      {model + " --seed $RANK", "rank 1 has --seed 1, rank 0 0"},
      {model + " --eval-data " + (folder / "$RANK.txt").string(),
       "rank 1 has --eval-data with checksum [0-9a-f]+, rank 0 [0-9a-f]+"}};
  for (const auto& [more, difference] : cases) {
    const RunResult ran = launched_by_script(folder / "run", "exec \"$@\"" + more);
    EXPECT_EQ(ran.exit_code, 3) << ran.err;
    EXPECT_THAT(ran.err,
                ContainsRegex(difference + "; start all ranks of a job with the same options"));
    EXPECT_LE(num_lines(ran.err), 6) << ran.err;
    EXPECT_FALSE(std::filesystem::exists(folder / "run/latest"));
  }
}

// Row R9 for inference and verify: ranks that sample with different seeds would generate different
// texts, and ranks with different weights would blame the layout for the difference.
TEST(Faults, InferenceRanksWithDifferentOptions_EndWith3AndBothValues) {
  const TempFolder folder;
  const std::string models = models_that_differ(folder);
  std::ofstream(folder / "0.txt") << kTinyLlama;
  std::ofstream(folder / "1.txt") << kTinyLlama << "\n\n";
  const std::string of_run = " --model " + models + "0";
  const std::string generate = "generate --prompt Once --max-new-tokens 2 ";
  const std::pair<std::string, std::string> cases[] = {
      {generate + "--do-sample --seed $RANK" + of_run, "rank 1 has --seed 1, rank 0 0"},
      {generate + "--dtype $(if [ $RANK = 1 ]; then echo bf16; else echo fp32; fi)" + of_run,
       "rank 1 has --dtype bf16, rank 0 fp32"},
      {generate + "--prompt $RANK" + of_run,
       "rank 1 has prompts with checksum [0-9a-f]+, rank 0 [0-9a-f]+"},
      {"eval --seq-len 32 --data " + (folder / "$RANK.txt").string() + of_run,
       "rank 1 has --data with checksum [0-9a-f]+, rank 0 [0-9a-f]+"},
      {"verify --tp 2 --seed $RANK" + of_run, "rank 1 has --seed 1, rank 0 0"},
      {"verify --tp $((2 - RANK)) --dp $((1 + RANK))" + of_run, "rank 1 has --tp 1, rank 0 2"},
      {"verify --tp 2 --model " + models + "$RANK",
       "rank 1 has weights with checksum [0-9a-f]+, rank 0 [0-9a-f]+"},
      {generate + "--model " + models + "$RANK",
       "rank 1 has weights with checksum [0-9a-f]+, rank 0 [0-9a-f]+"}};
  for (const auto& [command, difference] : cases) {
    const RunResult ran = run_cleave(
        {"launch", "-n", "2", "--", "/bin/bash", "-c", "exec " + test::program() + " " + command});
    EXPECT_EQ(ran.exit_code, 3) << ran.err;
    EXPECT_THAT(ran.err,
                ContainsRegex(difference + "; start all ranks of a job with the same options"));
    EXPECT_EQ(ran.out, "") << command;
  }
}

// Row R7: one rank runs train, the other verify.
TEST(Faults, RanksOfDifferentCommands_EndWith8) {
  const TempFolder folder;
  const RunResult ran = launched_by_script(
      folder / "run",
      "if [ $RANK = 1 ]; then exec \"$1\" verify --model llama-tiny; fi; exec \"$@\"");
  EXPECT_EQ(ran.exit_code, 8) << ran.err;
  EXPECT_THAT(ran.err, ContainsRegex("group 1 of ranks \\[0, 1\\] is .* on rank "));
}

// Row R12.
TEST(Faults, LearningRateThatExplodes_EndsWith9AndNoCheckpoint) {
  const TempFolder folder;
  const RunResult ran = run_cleave(
      train_tiny(folder / "run", {"--steps", "50", "--lr", "1e6", "--clip", "0", "--warmup", "0"}));
  EXPECT_EQ(ran.exit_code, 9) << ran.err;
  EXPECT_THAT(ran.err, HasSubstr("in step "));
  EXPECT_FALSE(std::filesystem::exists(folder / "run/latest"));
}

// Row H2: under umask 000 the files of a run are not world-writable.
TEST(Faults, RunUnderAnOpenUmask_MakesNoWorldWritableFile) {
  const TempFolder folder;
  const std::string run = folder / "run";
  std::string command = std::string("umask 000; exec ") + test::program();
  for (const std::string& word : train_tiny(run, {"--steps", "2"})) command += " " + word;
  ASSERT_EQ(run_program({"/bin/bash", "-c", command}).exit_code, 0);
  for (const auto& entry : std::filesystem::recursive_directory_iterator(run)) {
    const auto mode = entry.status().permissions();
    EXPECT_EQ(mode & std::filesystem::perms::others_write, std::filesystem::perms::none)
        << entry.path();
  }
}

}  // namespace
}  // namespace cleave::test
