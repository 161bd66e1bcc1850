// `cleave convert` and `cleave diff` on a run that the program trained.
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "cleave/file/file.h"
#include "tests/support/paths.h"
#include "tests/support/program.h"

namespace cleave::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Words = std::vector<std::string>;

RunResult convert(const std::string& from, const std::string& to, const Words& more = {}) {
  Words words{"convert", "--from", from, "--to", to};
  words.insert(words.end(), more.begin(), more.end());
  return run_cleave(words);
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// Trains a small Llama for two steps on two ranks.
void train(const std::string& out, const Words& more = {}) {
  Words words{"train", "--data", test::source_file("LICENSE"), "--out", out, "--seq-len", "32"};
  words.insert(words.end(), {"--batch-size", "4", "--steps", "2", "--tp", "2", "--gemm", "mkl",
                             "--threads-per-rank", "1"});
  words.insert(words.end(), more.begin(), more.end());
  const RunResult ran = run_cleave(words);
  ASSERT_EQ(ran.exit_code, 0) << ran.err;
}

/// Expects that `inspect` counts in folders of ranks, with so many files, what it counts in
/// `whole`.
void expect_inspected_as(const std::string& whole,
                         const std::vector<std::pair<std::string, size_t>>& folders) {
  const json want = json::parse(run_cleave({"inspect", whole, "--json"}).out);
  for (const auto& [folder, num_files] : folders) {
    const json found = json::parse(run_cleave({"inspect", folder, "--json"}).out);
    EXPECT_EQ(found["parameters"], want["parameters"]) << folder;
    EXPECT_EQ(found["bytes"], want["bytes"]) << folder;
    EXPECT_EQ(found["files"].size(), num_files) << folder;
  }
}

TEST(ConvertProgram, RunThroughEveryFormat_IsEqualAndGeneratesTheSame) {
  const TempFolder folder;
  const std::string run = folder / "run";
  train(run);
  std::string last = run;
  const std::vector<std::pair<std::string, Words>> forms = {
      {"nxd", {"--format", "nxd", "--tp", "2", "--pp", "2"}},
      {"bin", {"--format", "bin", "--max-shard-size", "1MB"}},
      {"oslo", {"--format", "oslo", "--tp", "3"}},
      {"safetensors", {}}};
  for (const auto& [name, words] : forms) {
    const RunResult ran = convert(last, folder / name, words);
    ASSERT_EQ(ran.exit_code, 0) << ran.err;
    EXPECT_TRUE(contains(ran.out, "(" + name + ")\n")) << ran.out;
    EXPECT_EQ(contains(ran.out, "the optimizer's state stays in " + run), last == run) << ran.out;
    last = folder / name;
  }
  EXPECT_EQ(convert(last, folder / "quiet", {"--quiet"}).out, "");
  const json summary = json::parse(convert(last, folder / "json", {"--json"}).out);
  EXPECT_EQ(summary["folder"], (folder / "json").string());
  EXPECT_EQ(summary["format"], "safetensors");
  EXPECT_EQ(summary["files"], 1);
  EXPECT_GT(summary["tensors"], 10);
  EXPECT_GT(summary["bytes"], 1000);
  const RunResult compared = run_cleave({"diff", run, last, "--json"});
  const json report = json::parse(compared.out);
  EXPECT_EQ(compared.exit_code, 0);
  EXPECT_EQ(report["equal"], true);
  EXPECT_EQ(report["optimizer_only_in_b"], 0);
  EXPECT_GT(report["optimizer_only_in_a"], 10);
  EXPECT_GT(report["compared"], 10);
  EXPECT_EQ(run_cleave({"diff", run, last}).out,
            "optimizer state: only in A, " + report["optimizer_only_in_a"].dump() +
                " tensors; only the weights are compared\n" + report["compared"].dump() +
                " tensors compared, all equal\n");
  EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{"bin", "json", "nxd", "oslo",
                                                               "quiet", "run", "safetensors"}));
  expect_inspected_as(last, {{folder / "nxd", 4}, {folder / "oslo", 3}});
  std::string want;
  for (const std::string& model : {run, std::string(folder / "oslo")}) {
    const RunResult ran = run_cleave({"generate", "--model", model, "--prompt", "the Work", "--tp",
                                      "2", "--max-new-tokens", "8", "--json"});
    ASSERT_EQ(ran.exit_code, 0) << ran.err;
    const std::string ids = json::parse(ran.out)["sequences"][0]["ids"].dump();
    if (want.empty()) want = ids;
    EXPECT_EQ(ids, want) << model;
  }

  const RunResult equal = run_cleave({"diff", last, folder / "nxd"});
  EXPECT_EQ(equal.exit_code, 0) << equal.out;
  EXPECT_TRUE(contains(equal.out, " tensors compared, all equal\n")) << equal.out;
  ASSERT_EQ(convert(last, folder / "half", {"--dtype", "bf16"}).exit_code, 0);
  const RunResult other = run_cleave({"diff", last, folder / "half"});
  EXPECT_EQ(other.exit_code, 1);
  EXPECT_TRUE(contains(other.out, "model.norm.weight: dtype F32 and BF16")) << other.out;
  EXPECT_TRUE(contains(other.out, " elements differ by up to ")) << other.out;
}

TEST(ConvertProgram, MergedAdapter_NamesTheRunOfTheAdapterForResuming) {
  const TempFolder folder;
  const std::string base = folder / "base", adapter = folder / "adapter";
  train(base);
  train(adapter, {"--model", base, "--lora", "2"});
  const RunResult ran = convert(base, folder / "merged", {"--adapter", adapter});
  ASSERT_EQ(ran.exit_code, 0) << ran.err;
  EXPECT_TRUE(contains(ran.out, "the optimizer's state stays in " + adapter + ";")) << ran.out;
}

// A GGUF file of a run is its model: equal weights, the same text, and a start for training.
TEST(ConvertProgram, GgufFile_IsTheModelOfTheRun) {
  const TempFolder folder;
  const std::string run = folder / "run", file = folder / "model.gguf", back = folder / "back";
  train(run);
  const RunResult ran = convert(run, file);  // the ending names the format
  ASSERT_EQ(ran.exit_code, 0) << ran.err;
  EXPECT_TRUE(contains(ran.out, " in 1 file (gguf)\n")) << ran.out;
  ASSERT_EQ(convert(file, back).exit_code, 0);
  const std::string half = folder / "half.gguf", f16 = folder / "f16.gguf";
  ASSERT_EQ(convert(run, half, {"--dtype", "fp16"}).exit_code, 0);
  EXPECT_EQ(convert(run, f16, {"--dtype", "f16"}).exit_code, 0);
  EXPECT_EQ(read_file(f16), read_file(half));
  const std::string again = folder / "again.gguf";
  EXPECT_EQ(json::parse(convert(run, again, {"--json"}).out)["file"], again);
  for (const std::string& other : {file, back}) {
    const json report = json::parse(run_cleave({"diff", run, other, "--json"}).out);
    EXPECT_EQ(report["equal"], true) << report;
  }
  const auto tokens = [](const std::string& tokenizer) {
    const std::string out =
        run_cleave({"tokenize", "--tokenizer", tokenizer, "--text", "the Work"}).out;
    return out.substr(std::min(out.find('\n'), out.size()));  // without the tokenizer's kind
  };
  // In llama-tiny, only the 6 matrices ffn_down have other rows than of 256: 688, a multiple of 16.
  const RunResult four = convert(run, folder / "four.gguf", {"--dtype", "q4_k_m"});
  EXPECT_TRUE(contains(four.out,
                       " in 1 file (gguf); 6 tensors in a type with more bits, because "
                       "their rows are not whole blocks of q4_k_m\n"))
      << four.out;
  const std::string of_file = tokens(file);
  EXPECT_TRUE(contains(of_file, "8 tokens\n")) << of_file;
  EXPECT_EQ(of_file, tokens(run));
  std::string want;
  for (const std::string& model : {run, file}) {
    const RunResult text = run_cleave(
        {"generate", "--model", model, "--prompt", "the Work", "--max-new-tokens", "8", "--json"});
    ASSERT_EQ(text.exit_code, 0) << text.err;
    const std::string ids = json::parse(text.out)["sequences"][0]["ids"].dump();
    if (want.empty()) want = ids;
    EXPECT_EQ(ids, want) << model;
  }
  const json seen = json::parse(run_cleave({"inspect", file, "--json"}).out);
  EXPECT_EQ(seen["kind"], "GGUF file");
  EXPECT_EQ(seen["metadata"]["general.architecture"], "llama");
  EXPECT_EQ(seen["metadata"]["general.name"], "run");
  EXPECT_EQ(seen["metadata"]["tokenizer.ggml.tokens"], "257 values");
  const RunResult trained = run_cleave(
      {"train", "--model", file, "--data", test::source_file("LICENSE"), "--out", folder / "next",
       "--seq-len", "32", "--batch-size", "4", "--steps", "1", "--threads-per-rank", "1"});
  EXPECT_EQ(trained.exit_code, 0) << trained.err;
  EXPECT_TRUE(fs::exists(folder / "next/step_00000001/tokenizer.json"));
}

TEST(ConvertProgram, InvalidConversions_EndWithTheirCodeAndLeaveNothing) {
  const TempFolder folder;
  const std::string run = folder / "run", out = folder / "out";
  train(run);
  struct Case {
    Words words;
    int exit_code;
    std::string text;
  };
  const std::vector<Case> cases = {
      {{"--tp", "2"}, 2, "is only for the formats oslo and nxd"},
      {{"--format", "oslo", "--tp", "9"}, 3, "tp"},
      {{"--format", "oslo", "--max-shard-size", "1GB"}, 2, "one file per rank"},
      {{"--max-shard-size", "much"}, 2, "expected a size such as 5GB"},
      {{"--dtype", "int5"}, 2, "--dtype is 'int5'; expected one of keep, fp32"},
      {{"--format", "bin", "--dtype", "int4"}, 2, "--dtype int4 applies to the format safetensors"},
      {{"--dtype", "q8_0"}, 2, "--dtype q8_0 applies to the format gguf"},
      {{"--format", "gguf", "--dtype", "fp64"}, 2, "--dtype fp64 does not exist"},
      {{"--format", "gguf", "--max-shard-size", "1GB"}, 2, "gguf has one file"},
      {{"--tp", "2", "--to", folder / "out.gguf"}, 2, "is only for the formats oslo and nxd"},
      {{"--format", "gguf"}, 2, "the name of a GGUF file ends in .gguf"},
      {{"--to", "gguf"}, 2, "--to is gguf, the name of a format; give the file"},
      {{"--dtype", "Q4_K_M"}, 2, "--dtype is 'Q4_K_M'; did you mean q4_k_m"},
      {{"--from", folder / "none"}, 5, "none"},
      {{"--to", run}, 5, "already exists"},
  };
  for (const Case& c : cases) {
    const RunResult ran = convert(run, out, c.words);
    EXPECT_EQ(ran.exit_code, c.exit_code) << ran.err;
    EXPECT_TRUE(contains(ran.err, c.text)) << ran.err;
    EXPECT_EQ(std::count(ran.err.begin(), ran.err.end(), '\n'), 1) << ran.err;
    EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{"run"}));
  }
  const auto in_shell = [&](const std::string& before) {
    return run_program({"/bin/bash", "-c",
                        before + "exec \"$0\" convert --from " + run + " --to " + out,
                        test::program()});
  };
  const RunResult full = in_shell("ulimit -f 100; ");  // no file above 100 KiB
  EXPECT_EQ(full.exit_code, 5) << full.err;
  EXPECT_TRUE(contains(full.err, "File too large; raise the file size limit")) << full.err;
  EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{"run"}));

  const auto locked = [&](const char* lock) {
    return in_shell("exec 9>" + (folder / lock).string() +
                    "; flock 9; printf 'pid 77 on here' >&9; ");
  };
  const RunResult second = locked(".out.lock");
  EXPECT_EQ(second.exit_code, 5) << second.err;
  EXPECT_TRUE(contains(second.err, out + " is being written by pid 77 on here")) << second.err;
  EXPECT_EQ(locked(".lock").exit_code, 0) << "of a run in the same folder";
}

TEST(ConvertProgram, MissingModel_IsNamedWithItsFlag) {
  const RunResult missing = run_cleave({"convert", "--from", "/no/where", "--to", "/no/there"});
  EXPECT_EQ(missing.exit_code, 5);
  EXPECT_EQ(missing.err, "cleave: --from /no/where: no such folder\n");
}

TEST(DiffProgram, MissingPathAndMissingWord_AreErrors) {
  EXPECT_EQ(run_cleave({"diff", "/nowhere"}).exit_code, 2);
  const RunResult missing = run_cleave({"diff", source_file("README.md"), "/nowhere"});
  EXPECT_EQ(missing.exit_code, 5);
  EXPECT_EQ(missing.err,
            "cleave: B /nowhere: no such file or folder; give two model or run folders, or tensor "
            "files\n");
}

}  // namespace
}  // namespace cleave::test
