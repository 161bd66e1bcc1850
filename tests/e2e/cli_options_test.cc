// Options that the library receives from flags and config files, and the exit codes of its
// failures.
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/e2e/fake_program.h"

namespace cleave::test {
namespace {

using nlohmann::json;
using Words = std::vector<std::string>;

class Options : public testing::Test {
 protected:
  Options() {
    std::filesystem::create_directories(folder_ / "model");
    for (const char* name : {"a.txt", "b.txt", "plan.json"}) std::ofstream(in(name)) << "x";
  }

  [[nodiscard]] std::string in(const std::string& name) const { return folder_ / name; }

  [[nodiscard]] json train(Words words, const RunWith& with = {}) const {
    words.insert(words.begin(), {"train", "--data", in("a.txt"), "--out", in("out")});
    return received_options(std::move(words), with);
  }

  [[nodiscard]] json train_with_config(json config, Words words = {}) const {
    config["data"] = {in("a.txt"), in("b.txt")};
    config["out"] = in("out");
    std::ofstream(in("run.json")) << config;
    words.insert(words.begin(), {"train", "--config", in("run.json")});
    return received_options(std::move(words));
  }

  [[nodiscard]] json generate(Words words) const {
    words.insert(words.begin(), {"generate", "--model", in("model")});
    return received_options(std::move(words));
  }

  TempFolder folder_;
};

// The documented defaults; the others are the files of the test.
const json kTrainDefaults = {{"model", "llama-tiny"},
                             {"task", ""},
                             {"tokenizer", ""},
                             {"chat-template", ""},
                             {"train-on", "assistant"},
                             {"tp", 0},
                             {"dp", 1},
                             {"steps", nullptr},
                             {"epochs", nullptr},
                             {"batch-size", 8},
                             {"micro-batch-size", 0},
                             {"seq-len", 0},
                             {"lr", 3e-4},
                             {"schedule", "cosine"},
                             {"min-lr", 0.0},
                             {"warmup", nullptr},
                             {"decay-steps", nullptr},
                             {"optimizer", "adamw"},
                             {"adam-betas", {0.9, 0.95}},
                             {"adam-eps", 1e-8},
                             {"weight-decay", 0.1},
                             {"decay-on", "matrices"},
                             {"param-group", json::array()},
                             {"clip", 1.0},
                             {"ema", 0.0},
                             {"dtype", ""},
                             {"reduce-dtype", ""},
                             {"seed", 0},
                             {"lora", 0},
                             {"lora-alpha", 0.0},
                             {"lora-targets", json::array()},
                             {"lora-dropout", 0.0},
                             {"lora-base", "dtype"},
                             {"rslora", false},
                             {"dora", false},
                             {"save-every", 0},
                             {"keep-last", 0},
                             {"resume", false},
                             {"over-commit", false},
                             {"eval-data", json::array()},
                             {"eval-every", 0},
                             {"early-stop", 0},
                             {"record-step", 0},
                             {"log", ""},
                             {"shuffle", true},
                             {"packing", false},
                             {"plan", ""},
                             {"gemm", "auto"},
                             {"threads-per-rank", 0},
                             {"timeout", 60.0},
                             {"transport", "auto"},
                             {"fast-sums", false},
                             {"device", "cpu"}};

TEST_F(Options, TrainWithoutFlags_HasTheDocumentedDefaults) {
  json wanted = kTrainDefaults;
  wanted["data"] = json::array({in("a.txt")});
  wanted["out"] = in("out");
  wanted["command"] = fake_program() + " train --data " + in("a.txt") + " --out " + in("out");
  const json options = train({});
  EXPECT_EQ(options, wanted) << json::diff(wanted, options);
}

// Every flag with a value other than its default, for the command line and a config file.
const json kEveryTrainFlag = {{"model", "llama-135m"},
                              {"task", "mlm"},
                              {"tokenizer", "bytes"},
                              {"chat-template", "chatml"},
                              {"train-on", "all"},
                              {"tp", 2},
                              {"dp", 3},
                              {"steps", 7},
                              {"batch-size", 12},
                              {"micro-batch-size", 2},
                              {"seq-len", 64},
                              {"lr", 0.5},
                              {"schedule", "wsd"},
                              {"min-lr", 0.25},
                              {"warmup", 3},
                              {"decay-steps", 2},
                              {"optimizer", "sgd"},
                              {"adam-betas", {0.5, 0.25}},
                              {"adam-eps", 0.125},
                              {"weight-decay", 0.0},
                              {"decay-on", "all"},
                              {"clip", 0.0},
                              {"ema", 0.75},
                              {"dtype", "bf16"},
                              {"reduce-dtype", "bf16"},
                              {"seed", 18446744073709551615U},
                              {"lora", 16},
                              {"lora-alpha", 24.5},
                              {"lora-dropout", 0.25},
                              {"lora-base", "nf4"},
                              {"rslora", true},
                              {"dora", true},
                              {"save-every", 4},
                              {"keep-last", 5},
                              {"resume", true},
                              {"over-commit", true},
                              {"eval-every", 6},
                              {"early-stop", 2},
                              {"record-step", 4},
                              {"log", "tensorboard"},
                              {"shuffle", false},
                              {"packing", true},
                              {"gemm", "mkl"},
                              {"threads-per-rank", 9},
                              {"timeout", 1.5},
                              {"transport", "tcp"},
                              {"fast-sums", true}};

TEST_F(Options, EveryTrainFlag_ReachesItsOption) {
  Words words = {"--eval-data",    in("b.txt"),     "--plan",        in("plan.json"),
                 "--no-shuffle",   "--packing",     "--resume",      "--over-commit",
                 "--param-group",  "a:lr-factor=0", "--param-group", "b:weight-decay=0",
                 "--lora-targets", "q_proj,v_proj", "--rslora",      "--dora",
                 "--fast-sums"};
  for (const auto& [name, value] : kEveryTrainFlag.items()) {
    if (value.is_boolean()) continue;
    words.push_back("--" + name);
    words.push_back(value.is_array()    ? "0.5,0.25"
                    : value.is_string() ? value.get<std::string>()
                                        : value.dump());
  }
  const json options = train(words);
  for (const auto& [name, value] : kEveryTrainFlag.items()) EXPECT_EQ(options[name], value) << name;
  EXPECT_EQ(options["param-group"], json({"a:lr-factor=0", "b:weight-decay=0"}));
  EXPECT_EQ(options["eval-data"], json({in("b.txt")}));
  EXPECT_EQ(options["plan"], in("plan.json"));
  EXPECT_EQ(options["lora-targets"], json({"q_proj,v_proj"}));
}

TEST_F(Options, EveryTrainKeyOfAConfigFile_ReachesItsOption) {
  json config = kEveryTrainFlag;
  config["eval_data"] = in("b.txt");
  config["plan"] = in("plan.json");
  config.erase("shuffle");
  config["no-shuffle"] = true;
  const json options = train_with_config(config);
  for (const auto& [name, value] : kEveryTrainFlag.items()) EXPECT_EQ(options[name], value) << name;
  EXPECT_EQ(options["data"], json({in("a.txt"), in("b.txt")}));
  EXPECT_EQ(options["eval-data"], json({in("b.txt")}));
}

TEST_F(Options, FlagsWinOverTheConfigFile) {
  const json options =
      train_with_config({{"lr", 0.5}, {"resume", true}, {"shuffle", false}, {"tp", 2}},
                        {"--lr", "0.25", "--no-resume", "--shuffle"});
  EXPECT_EQ(options["lr"], 0.25);
  EXPECT_EQ(options["resume"], false);
  EXPECT_EQ(options["shuffle"], true);
  EXPECT_EQ(options["tp"], 2);
}

TEST_F(Options, EpochsOnTheCommandLine_HideStepsOfTheConfigFile) {
  const json options = train_with_config({{"steps", 5}}, {"--epochs", "2"});
  EXPECT_EQ(options["steps"], nullptr);
  EXPECT_EQ(options["epochs"], 2);
}

TEST_F(Options, NullInAConfigFile_IsTheDefault) {
  EXPECT_EQ(train_with_config({{"steps", nullptr}, {"lr", nullptr}})["lr"], 3e-4);
}

TEST_F(Options, UnderscoresAndRepeats_AreAccepted) {
  const json options = train({"--batch_size", "4", "--batch-size=6", "--data", in("b.txt")});
  EXPECT_EQ(options["batch-size"], 6);
  EXPECT_EQ(options["data"], json({in("a.txt"), in("b.txt")}));
}

TEST_F(Options, Command_IsQuotedForAShell) {
  const json options = train({"--tokenizer", "bytes", "--model", "it's a b"});
  EXPECT_TRUE(options["command"].get<std::string>().ends_with("--model 'it'\\''s a b'"));
}

// With --resume at its end, this is the command that resumes a run.
TEST_F(Options, CommandUnderLaunch_IsTheWholeOne) {
  const Words of_launch{"launch", "-n", "1", "--max-restarts", "2", "--"};
  Words words = of_launch;
  words.insert(words.end(), {fake_program(), "train", "--data", in("a.txt"), "--out", in("out")});
  std::string typed = fake_program();
  for (const std::string& word : words) typed += " " + word;
  EXPECT_EQ(received_options(words)["command"], typed);
}

TEST_F(Options, GenerateWithoutFlags_HasTheDocumentedDefaults) {
  const json wanted = {{"model", in("model")},
                       {"tokenizer", ""},
                       {"prompts", {"a"}},
                       {"prompt-ids", json::array()},
                       {"max-new-tokens", 64},
                       {"num-beams", 1},
                       {"num-return-sequences", 1},
                       {"length-penalty", nullptr},
                       {"early-stopping", ""},
                       {"no-repeat-ngram-size", nullptr},
                       {"repetition-penalty", nullptr},
                       {"do-sample", false},
                       {"temperature", nullptr},
                       {"top-k", nullptr},
                       {"top-p", nullptr},
                       {"seed", 0},
                       {"eos-id", nullptr},
                       {"stop", json::array()},
                       {"tp", 0},
                       {"ep", 1},
                       {"dtype", ""},
                       {"kv-cache-dtype", "auto"},
                       {"device", "cpu"},
                       {"json", false},
                       {"stream", true},
                       {"chat", false},
                       {"record-step", 0},
                       {"out", ""},
                       {"gemm", "auto"},
                       {"threads-per-rank", 0},
                       {"timeout", 60.0},
                       {"transport", "auto"},
                       {"fast-sums", false}};
  const json options = generate({"--prompt", "a"});
  EXPECT_EQ(options, wanted) << json::diff(wanted, options);
}

TEST_F(Options, Chat_HasLongerAnswers) {
  json options = generate({"--chat"});
  EXPECT_EQ(options["chat"], true);
  EXPECT_EQ(options["max-new-tokens"], 512);
  options = generate({"--chat", "--max-new-tokens", "7"});
  EXPECT_EQ(options["max-new-tokens"], 7);
}

TEST_F(Options, EveryGenerateFlag_ReachesItsOption) {
  const json wanted = {{"max-new-tokens", 5},
                       {"num-beams", 4},
                       {"num-return-sequences", 3},
                       {"length-penalty", -0.5},
                       {"early-stopping", "never"},
                       {"no-repeat-ngram-size", 2},
                       {"repetition-penalty", 1.25},
                       {"temperature", 0.5},
                       {"top-k", 0},
                       {"top-p", 0.75},
                       {"seed", 11},
                       {"eos-id", 2},
                       {"record-step", 3},
                       {"out", "out"},
                       {"tokenizer", "bytes"},
                       {"tp", 2},
                       {"ep", 3},
                       {"dtype", "fp64"},
                       {"kv-cache-dtype", "int8"},
                       {"gemm", "onednn"},
                       {"threads-per-rank", 2},
                       {"timeout", 2.5},
                       {"transport", "mpi"}};
  Words words = {"--prompt",    "x",      "--do-sample", "--json",
                 "--no-stream", "--stop", "a, b",        "--fast-sums"};
  for (const auto& [name, value] : wanted.items()) {
    words.push_back("--" + name);
    words.push_back(value.is_string() ? value.get<std::string>() : value.dump());
  }
  const json options = generate(words);
  for (const auto& [name, value] : wanted.items()) EXPECT_EQ(options[name], value) << name;
  EXPECT_EQ(options["do-sample"], true);
  EXPECT_EQ(options["json"], true);
  EXPECT_EQ(options["fast-sums"], true);
  EXPECT_EQ(options["stream"], false);
  EXPECT_EQ(options["stop"], json({"a, b"}));
}

TEST_F(Options, Prompts_AreTakenAsTheyAre) {
  const json options =
      generate({"--prompt", "[INST] a, b [/INST]", "--prompt", "--help", "--prompt", ""});
  EXPECT_EQ(options["prompts"], json({"[INST] a, b [/INST]", "--help", ""}));
}

TEST_F(Options, PromptIds_AreRows) {
  EXPECT_EQ(generate({"--prompt-ids", "1,2,3", "--prompt-ids", "4"})["prompt-ids"],
            json::parse("[[1,2,3],[4]]"));
  std::ofstream(in("one.json")) << R"({"prompt-ids": [1, 2, 3]})";
  EXPECT_EQ(generate({"--config", in("one.json")})["prompt-ids"], json::parse("[[1,2,3]]"));
  std::ofstream(in("two.json")) << R"({"prompt-ids": [[1, 2, 3], [4]]})";
  EXPECT_EQ(generate({"--config", in("two.json")})["prompt-ids"], json::parse("[[1,2,3],[4]]"));
}

TEST_F(Options, PromptFile_HasAPromptALine) {
  const std::string byte_order_mark = "\xEF\xBB\xBF";
  std::ofstream(in("p.txt")) << byte_order_mark << "one\n\ntwo words\r\nlast";
  EXPECT_EQ(generate({"--prompt-file", in("p.txt")})["prompts"],
            json({"one", "two words", "last"}));
  std::ofstream(in("p.jsonl")) << "{\"prompt\": \"a\\nb\"}\n  \t\r\n{\"text\": \"c\"}\n";
  EXPECT_EQ(generate({"--prompt-file", in("p.jsonl")})["prompts"], json({"a\nb", "c"}));
  std::ofstream(in("i.jsonl")) << "{\"input_ids\": [5, 6]}\n";
  EXPECT_EQ(generate({"--prompt-file", in("i.jsonl")})["prompt-ids"], json::parse("[[5,6]]"));
}

TEST_F(Options, PromptFileFromStdin_HasAPromptALine) {
  const Words words{"generate", "--model", in("model"), "--prompt-file", "-"};
  RunWith with;
  with.input = "one\n\ntwo words\r\nlast";
  EXPECT_EQ(received_options(words, with)["prompts"], json({"one", "two words", "last"}));
  with.environment = {"RANK=1", "WORLD_SIZE=2", "LOCAL_RANK=1"};
  const RunResult ran = run_fake(words, with);
  EXPECT_EQ(ran.exit_code, 2);
  EXPECT_EQ(ran.err,
            "cleave: --prompt-file - reads stdin, which the ranks of a launcher do not share; "
            "give a file\n");
}

TEST_F(Options, SamplingFlagsWithoutSampling_AreWarnedAbout) {
  const RunResult ran =
      run_fake({"generate", "--model", in("model"), "--prompt", "a", "--temperature", "2"});
  EXPECT_EQ(ran.err, "cleave: warning: --temperature has no effect without --do-sample\n");
  EXPECT_EQ(ran.exit_code, 0);
}

TEST_F(Options, TemperatureZero_IsGreedyDecoding) {
  const json options = generate({"--prompt", "a", "--do-sample", "--temperature", "0"});
  EXPECT_EQ(options["do-sample"], false);
  EXPECT_EQ(options["temperature"], 1);
  RunResult ran = run_fake({"generate", "--model", in("model"), "--prompt", "a", "--do-sample",
                            "--temperature", "0", "--top-k", "5"});
  EXPECT_EQ(ran.err, "cleave: warning: --top-k has no effect at --temperature 0\n");
  EXPECT_EQ(ran.exit_code, 0);
  ran = run_fake({"generate", "--model", in("model"), "--prompt", "a", "--temperature", "1e-40"});
  EXPECT_EQ(ran.err,
            "cleave: --temperature 1e-40 must be 0 (the likeliest token) or at least 1e-06\n");
  EXPECT_EQ(ran.exit_code, 2);
}

TEST_F(Options, OneRankOnAGpu_RunsInThisProcess) {
  EXPECT_EQ(train({"--device", "cuda"})["device"], "cuda");
  EXPECT_EQ(generate({"--prompt", "a", "--device", "cuda", "--tp", "1"})["device"], "cuda");
}

// The fake library prints its options on one line per process.
TEST_F(Options, RanksOnGpus_AreProcessesOfThisCommandLine) {
  const RunResult ran = run_fake({"generate", "--model", in("model"), "--prompt", "a b", "--tp",
                                  "3", "--ep", "2", "--device", "cuda"});
  EXPECT_EQ(ran.exit_code, 0) << ran.err;
  std::istringstream lines(ran.out);
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    const json options = json::parse(line);
    EXPECT_EQ(options["device"], "cuda");
    EXPECT_EQ(options["prompts"], json({"a b"}));
  }
  EXPECT_EQ(count, 6) << ran.out;
}

TEST_F(Options, MoreRanksThanGpus_AreReportedOnceBeforeAnyStarts) {
  const RunResult ran = run_fake(
      {"generate", "--model", in("model"), "--prompt", "a", "--tp", "9", "--device", "cuda"});
  EXPECT_EQ(ran.exit_code, 3);
  EXPECT_EQ(ran.err, "cleave: requested failure\n");
  EXPECT_EQ(ran.out, "");
}

TEST_F(Options, EveryEvalFlag_ReachesItsOption) {
  std::filesystem::create_directory(in("ref"));
  const json wanted = {{"model", in("model")},
                       {"data", {in("a.txt"), in("b.txt")}},
                       {"task", "dpo"},
                       {"dpo-beta", 0.2},
                       {"reference", in("ref")},
                       {"tokenizer", "bytes"},
                       {"tp", 2},
                       {"ep", 3},
                       {"seq-len", 32},
                       {"batch-size", 3},
                       {"dtype", "bf16"},
                       {"device", "cpu"},
                       {"json", true},
                       {"gemm", "mkl"},
                       {"threads-per-rank", 4},
                       {"timeout", 5.0},
                       {"transport", "tcp"},
                       {"fast-sums", true},
                       {"spins", "10000"}};
  const json options = received_options({"eval",
                                         "--model",
                                         in("model"),
                                         "--data",
                                         in("a.txt"),
                                         in("b.txt"),
                                         "--task",
                                         "dpo",
                                         "--dpo-beta",
                                         "0.2",
                                         "--reference",
                                         in("ref"),
                                         "--tokenizer",
                                         "bytes",
                                         "--tp",
                                         "2",
                                         "--ep",
                                         "3",
                                         "--seq-len",
                                         "32",
                                         "--batch-size",
                                         "3",
                                         "--dtype",
                                         "bf16",
                                         "--json",
                                         "--gemm",
                                         "mkl",
                                         "--threads-per-rank",
                                         "4",
                                         "--timeout",
                                         "5",
                                         "--transport",
                                         "tcp",
                                         "--fast-sums"});
  EXPECT_EQ(options, wanted) << json::diff(wanted, options);
}

TEST_F(Options, WaitingThreads_SleepSoonUnlessTheUserSetsIt) {
  const auto spins = [&](const Words& environment) {
    return received_options({"eval", "--model", in("model"), "--data", in("a.txt")},
                            {.environment = environment})["spins"];
  };
  EXPECT_EQ(spins({}), "10000");
  EXPECT_EQ(spins({"GOMP_SPINCOUNT=5"}), "5");
  EXPECT_EQ(spins({"OMP_WAIT_POLICY=ACTIVE"}), "");
}

TEST_F(Options, UnderALauncher_SizesAndLocalRankAreChecked) {
  const RunWith rank1{.environment = {"RANK=1", "WORLD_SIZE=4", "LOCAL_RANK=1"}};
  EXPECT_EQ(train({"--tp", "2", "--dp", "2", "--local_rank=1"}, rank1)["tp"], 2);
  const Words base = {"train", "--data", in("a.txt"), "--out", in("out")};
  const auto refusal = [&](Words words) {
    words.insert(words.begin(), base.begin(), base.end());
    const RunResult ran = run_fake(words, rank1);
    EXPECT_EQ(ran.exit_code, 3);
    return ran.err;
  };
  EXPECT_EQ(refusal({"--tp", "3"}),
            "cleave: --tp 3 x --dp 1 is 3 ranks, but the launcher started 4; make them equal, or "
            "omit --tp\n");
  EXPECT_EQ(refusal({"--dp", "3"}),
            "cleave: --dp 3 does not divide the 4 ranks that the launcher started\n");
  EXPECT_EQ(refusal({"--local-rank", "0"}),
            "cleave: --local-rank=0 but LOCAL_RANK=1; leave the flag out or make them equal\n");
  // predict has no --ep.
  const RunResult predict =
      run_fake({"predict", "--model", in("model"), "--text", "a", "--tp", "3"}, rank1);
  EXPECT_EQ(predict.exit_code, 3);
  EXPECT_EQ(predict.err,
            "cleave: --tp 3 is 3 ranks, but the launcher started 4; make them equal, or omit "
            "--tp\n");
  const RunResult generate =
      run_fake({"generate", "--model", in("model"), "--prompt", "a", "--ep", "3"}, rank1);
  EXPECT_EQ(generate.exit_code, 3);
  EXPECT_EQ(generate.err, "cleave: --ep 3 does not divide the 4 ranks that the launcher started\n");
}

TEST_F(Options, EveryFailureOfTheLibrary_HasItsExitCodeAndOneLine) {
  const auto run = [&](const std::string& model) {
    return run_fake({"train", "--data", in("a.txt"), "--out", in("out"), "--model", model});
  };
  for (const int code : {2, 3, 4, 5, 6, 7, 8, 9, 10, 70}) {
    const RunResult ran = run("error-" + std::to_string(code));
    EXPECT_EQ(ran.exit_code, code);
    EXPECT_EQ(ran.err, "cleave: requested failure\n");
  }
  for (const int signal : {2, 15}) {
    const RunResult ran = run("signal-" + std::to_string(signal));
    EXPECT_EQ(ran.exit_code, 128 + signal);
    EXPECT_EQ(ran.err, "");
  }
  EXPECT_EQ(run("memory").exit_code, 10);
  EXPECT_EQ(run("other").exit_code, 70);
  const RunResult unexpected = run("exception");
  EXPECT_EQ(unexpected.exit_code, 70);
  EXPECT_EQ(unexpected.err,
            "cleave: unexpected error: first line; this is a bug in cleave; please report it with "
            "the command line\n");
  const RunResult ended = run("terminate");
  EXPECT_EQ(ended.exit_code, 128 + SIGABRT);
  EXPECT_EQ(ended.err, "cleave: terminated without an exception; this is a bug in cleave\n");
}

}  // namespace
}  // namespace cleave::test
