// The program with --device cuda on fake devices: each rank is a process.
#include "tests/support/program.h"

#include <gtest/gtest.h>

#include "tests/support/train_program.h"

namespace cleave::fake_program_test {
namespace {

using test::metrics_of;
using test::RunResult;
using test::TempFolder;
using Words = std::vector<std::string>;

RunResult run_on_device(Words words) {
  words.insert(words.begin(), CLEAVE_FAKE_DEVICE_PROGRAM);
  words.insert(words.end(), {"--device", "cuda"});
  return test::run_program(words);
}

Words train(const TempFolder& folder, const std::string& out, const Words& more) {
  std::ofstream(folder / "tiny.json") << test::kTinyLlama;
  Words words = test::train(out, {"--dtype", "fp64", "--model", folder / "tiny.json"});
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// The bound is that of tests/e2e/cuda_test.cc.
void expect_losses(const std::string& have, const std::string& want, size_t number) {
  const auto got = metrics_of(have), expected = metrics_of(want);
  ASSERT_EQ(got.size(), number);
  ASSERT_EQ(expected.size(), number);
  for (size_t i = 0; i < number; ++i) {
    EXPECT_NEAR(got[i]["loss"].get<double>(), expected[i]["loss"].get<double>(), 1e-9)
        << "step " << i + 1;
  }
}

TEST(ProgramOnDevice, TrainedOnTwoDevicesAndResumedOnTheCpu_HasTheCpusLosses) {
  const TempFolder folder;
  const std::string cpu = folder / "cpu", device = folder / "device";
  const Words constant{"--schedule", "constant", "--warmup", "0"};
  const auto with = [&](Words more) {
    more.insert(more.end(), constant.begin(), constant.end());
    return more;
  };
  const RunResult on_cpu = test::run_cleave(train(folder, cpu, with({"--steps", "8"})));
  ASSERT_EQ(on_cpu.exit_code, 0) << on_cpu.err;
  const RunResult begun = run_on_device(train(folder, device, with({"--steps", "4", "--tp", "2"})));
  ASSERT_EQ(begun.exit_code, 0) << begun.err;
  const RunResult resumed =
      test::run_cleave(train(folder, device, with({"--steps", "8", "--resume"})));
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  expect_losses(device, cpu, 8);
}

// A device has 4 GiB, and the model's weights, gradients and moments need 16 bytes a weight.
TEST(ProgramOnDevice, RunThatDoesNotFit_IsRefusedBeforeItTakesMemory) {
  const TempFolder folder;
  const RunResult ran = run_on_device(
      test::train(folder / "run", {"--model", "llama-1.1b", "--steps", "1", "--dtype", "fp32"}));
  EXPECT_EQ(ran.exit_code, 10) << ran.err;
  EXPECT_NE(ran.err.find(" of memory, and the GPU has 4"), std::string::npos) << ran.err;
}

TEST(ProgramOnDevice, Generate_PrintsTheCpusText) {
  const TempFolder folder;
  const RunResult trained = test::run_cleave(train(folder, folder / "run", {"--steps", "3"}));
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  const Words words{"generate",         "--model", folder / "run", "--prompt", "The",
                    "--max-new-tokens", "8",       "--dtype",      "fp64"};
  const RunResult want = test::run_cleave(words);
  ASSERT_EQ(want.exit_code, 0) << want.err;
  const RunResult have = run_on_device(words);
  EXPECT_EQ(have.exit_code, 0) << have.err;
  EXPECT_EQ(have.out, want.out);
}

TEST(ProgramOnDevice, Verify_FindsTheShardedModelEqual) {
  const RunResult ran = run_on_device({"verify", "--model", "llama-tiny", "--tp", "2", "--json"});
  EXPECT_EQ(ran.exit_code, 0) << ran.out << ran.err;
}

}  // namespace
}  // namespace cleave::fake_program_test
