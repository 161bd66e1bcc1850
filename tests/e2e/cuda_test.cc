// --device cuda: the error without a GPU, and with GPUs the same losses as on the CPU.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/paths.h"
#include "tests/support/program.h"

namespace cleave::test {
namespace {

using nlohmann::json;
using Words = std::vector<std::string>;

/// `cleave doctor`'s line about CUDA: "2 GPUs: ...", or "none; " and the reason.
const std::string& cuda_text() {
  static const std::string text = [] {
    const RunResult ran = run_cleave({"doctor", "--json"});
    EXPECT_EQ(ran.exit_code, 0) << ran.err;
    return json::parse(ran.out)["cleave"]["CUDA"].get<std::string>();
  }();
  return text;
}

int num_gpus() {
  return static_cast<int>(std::strtol(cuda_text().c_str(), nullptr, 10));  // 0 for "none; ..."
}

#define SKIP_WITHOUT_GPUS(count) \
  if (num_gpus() < (count)) GTEST_SKIP() << "needs " << (count) << " GPUs; CUDA: " << cuda_text()

Words train(const std::string& out, const Words& more) {
  const std::string text = test::source_file("LICENSE");
  Words words{"train", "--data", text, "--out", out, "--seq-len", "32", "--steps", "20"};
  words.insert(words.end(), {"--batch-size", "4"});
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

std::vector<double> losses_of(const std::string& run) {
  std::vector<double> out;
  std::ifstream file(run + "/metrics.jsonl");
  for (std::string line; std::getline(file, line);) out.push_back(json::parse(line)["loss"]);
  return out;
}

/// The other order of sums alone changes the losses of 20 steps: hardly in fp64; in bf16, whose
/// numbers have 8 bits, by some parts in a hundred.
double tolerance(const std::string& dtype) {
  if (dtype == "fp64") return 1e-9;
  return dtype == "fp32" ? 1e-3 : 0.1;
}

void expect_losses_of_the_cpu(const Words& layout, const std::string& dtype = "fp64",
                              const Words& environment = {}) {
  const TempFolder folder;
  const std::string cpu = folder / "cpu", gpu = folder / "gpu";
  ASSERT_EQ(run_cleave(train(cpu, {"--dtype", dtype})).exit_code, 0);
  Words words = layout;
  words.insert(words.end(), {"--dtype", dtype, "--device", "cuda"});
  const RunResult ran = run_cleave(train(gpu, words), {.environment = environment});
  ASSERT_EQ(ran.exit_code, 0) << ran.err;
  const auto want = losses_of(cpu);
  const auto got = losses_of(gpu);
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_NEAR(got[i], want[i], tolerance(dtype)) << dtype << ", step " << i + 1;
  }
}

TEST(CudaProgram, WithoutAGpu_EveryCommandSaysWhatIsMissing) {
  if (num_gpus() > 0) GTEST_SKIP() << "this host has " << cuda_text();
  const TempFolder folder;
  for (const Words& layout : std::vector<Words>{{}, {"--tp", "2"}}) {
    Words words = layout;
    words.insert(words.end(), {"--device", "cuda"});
    const RunResult ran = run_cleave(train(folder / "run", words));
    EXPECT_EQ(ran.exit_code, 2) << ran.err;
    EXPECT_TRUE(ran.err.starts_with("cleave: --device cuda: ")) << ran.err;
    EXPECT_NE(ran.err.find("choose cpu"), std::string::npos) << ran.err;
    EXPECT_FALSE(std::filesystem::exists(folder / "run"));
  }
}

TEST(CudaProgram, TrainedOnAGpu_HasTheLossesOfTheCpu) {
  SKIP_WITHOUT_GPUS(1);
  for (const std::string dtype : {"fp64", "fp32", "bf16"}) expect_losses_of_the_cpu({}, dtype);
}

TEST(CudaProgram, TrainedOverRanksOfOneGpu_HasTheLossesOfTheCpu) {
  SKIP_WITHOUT_GPUS(1);
  for (const Words& layout : std::vector<Words>{
           {"--tp", "2"}, {"--dp", "2", "--zero", "1"}, {"--dp", "2", "--fsdp"}, {"--pp", "2"}}) {
    SCOPED_TRACE(layout[0]);
    expect_losses_of_the_cpu(layout, "fp64", {"CLEAVE_SHARE_GPU=1"});
  }
}

TEST(CudaProgram, TrainedOverGpus_HasTheLossesOfTheCpu) {
  SKIP_WITHOUT_GPUS(2);
  for (const Words& layout :
       std::vector<Words>{{"--tp", "2"}, {"--dp", "2"}, {"--dp", "2", "--fsdp"}, {"--pp", "2"}}) {
    SCOPED_TRACE(layout[0]);
    expect_losses_of_the_cpu(layout);
  }
}

TEST(CudaProgram, ShardedOverGpus_IsTheModelOnTheCpu) {
  SKIP_WITHOUT_GPUS(2);
  const RunResult ran =
      run_cleave({"verify", "--model", "llama-tiny", "--tp", "2", "--device", "cuda", "--json"});
  EXPECT_EQ(ran.exit_code, 0) << ran.out << ran.err;
}

TEST(CudaProgram, MoreRanksThanGpus_AreRefusedWithTheMaximum) {
  SKIP_WITHOUT_GPUS(1);
  const TempFolder folder;
  const std::string tp = std::to_string(num_gpus() + 1);
  const RunResult ran = run_cleave(train(folder / "run", {"--tp", tp, "--device", "cuda"}));
  EXPECT_EQ(ran.exit_code, 3) << ran.err;
  EXPECT_NE(ran.err.find("start at most " + std::to_string(num_gpus())), std::string::npos)
      << ran.err;
}

}  // namespace
}  // namespace cleave::test
