#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/base/byte_count.h"
#include "cleave/mesh/job.h"
#include "cleave/train/setup.h"
#include "cleave/train/trainer.h"
#include "tests/support/captured_stdout.h"
#include "tests/support/small_run.h"
#include "tests/support/temp_folder.h"
#include "tests/support/thrown.h"
#include "tests/support/train_program.h"

namespace cleave::memory_test {
namespace {

using test::TempFolder;
using testing::HasSubstr;

TrainOptions tiny_run(const TempFolder& folder) {
  TrainOptions o = test::small_run(folder, test::kTinyLlama);
  o.seq_len = 32;
  o.steps = 3;
  return o;
}

// A forecast may be 10 % above the memory of the run: then it must start.
TEST(Memory, RunWithinTheErrorOfTheForecast_IsNotRefused) {
  const TempFolder folder;
  TrainOptions o = tiny_run(folder);
  o.dp = 2;
  const TrainSetup setup = make_setup(o, 0);
  ASSERT_TRUE(setup.planned);
  const int64_t needed = 2 * setup.planned->most_bytes();
  const auto check = [&](double available) {
    require_memory(setup, ranks_of_host(setup.layout), {.bytes = static_cast<int64_t>(available)});
  };
  check(static_cast<double>(needed) / 1.09);
  const Error error = test::thrown_by([&] { check(static_cast<double>(needed) / 1.11); });
  EXPECT_EQ(error.code(), Code::kMemory);
  EXPECT_THAT(error.what(), HasSubstr("the 2 ranks on this host need about " + bytes_text(needed) +
                                      " of memory, and "));
}

TEST(Memory, RankThatDoesNotFitOnItsGpu_IsNamed) {
  const TempFolder folder;
  TrainOptions o = tiny_run(folder);
  o.dp = 2;
  const TrainSetup setup = make_setup(o, 0);
  const auto needed = static_cast<double>(setup.planned->most_bytes());
  require_gpu_memory(setup, {1, 2}, static_cast<int64_t>(needed / 1.09));
  const auto left = static_cast<int64_t>(needed / 1.2);
  const Error error = test::thrown_by([&] { require_gpu_memory(setup, {1, 2}, left); });
  EXPECT_EQ(error.code(), Code::kMemory);
  EXPECT_THAT(error.what(),
              HasSubstr("rank 1 needs about " + bytes_text(needed) +
                        " of memory, and the GPU has " + bytes_text(left) + " left; "));
}

// Oracle: the forecast of the run with the suggested flag.
TEST(Memory, RunThatFitsWithSmallerMicroBatches_IsToldSo) {
  const TempFolder folder;
  TrainOptions o = tiny_run(folder);
  const TrainSetup setup = make_setup(o, 0);
  o.micro_batch_size = 2;
  const int64_t smaller = make_setup(o, 0).planned->most_bytes();
  ASSERT_LT(1.1 * static_cast<double>(smaller), static_cast<double>(setup.planned->most_bytes()));
  const Error error = test::thrown_by([&] {
    require_memory(setup, {0, 1}, {.bytes = smaller, .is_of_cgroup = true});
  });
  EXPECT_THAT(error.what(),
              HasSubstr("the limit of the container or batch job leaves " + bytes_text(smaller) +
                        "; add --micro-batch-size 2, which needs about " + bytes_text(smaller) +
                        "; --over-commit starts it anyway"));
}

// Oracle: the forecast of a run with the suggested flags. A wide model with short sequences: its
// weights, gradients and moments need the memory, which only an adapter saves.
TEST(Memory, TuningThatFitsOnlyWithAnAdapter_IsRefusedWithItsFlags) {
  const TempFolder folder;
  TrainOptions o = test::small_run(
      folder, R"({"architectures":["LlamaForCausalLM"],"model_type":"llama","vocab_size":257,
      "hidden_size":256,"intermediate_size":1024,"num_hidden_layers":2,"num_attention_heads":2,
      "max_position_embeddings":32})");
  o.steps = 1;
  o.batch_size = o.micro_batch_size = 1;
  cleave_train(o);
  const std::string sizes = std::exchange(o.model, o.out);
  o.out = folder / "tuned";
  const auto bytes_with = [&](int64_t rank, const char* base) {
    TrainOptions adapter = o;
    adapter.lora = rank;
    adapter.lora_base = base;
    return make_setup(adapter, 0).planned->most_bytes();
  };
  const auto refusal = [&](int64_t available) -> std::string {
    const TrainSetup setup = make_setup(o, 0);
    return test::thrown_by([&] { require_memory(setup, {0, 1}, {.bytes = available}); }).what();
  };
  const auto added = [](const std::string& flags, int64_t bytes) {
    return HasSubstr("; add " + flags + ", which needs about " + bytes_text(bytes) +
                     "; --over-commit");
  };
  const int64_t dtype = bytes_with(16, "dtype"), int8 = bytes_with(16, "int8"),
                nf4 = bytes_with(16, "nf4");
  ASSERT_LT(int8, dtype);
  ASSERT_LT(nf4, int8);
  ASSERT_LT(3 * dtype, 2 * make_setup(o, 0).planned->most_bytes());
  EXPECT_THAT(refusal(dtype), added("--lora 16", dtype));
  EXPECT_THAT(refusal(int8), added("--lora 16 --lora-base int8", int8));
  EXPECT_THAT(refusal(nf4), added("--lora 16 --lora-base nf4", nf4));
  EXPECT_THAT(refusal(1), HasSubstr("; choose a smaller model"));
  // New weights have nothing to freeze.
  o.model = sizes;
  EXPECT_THAT(refusal(dtype), Not(HasSubstr("--lora")));
}

/// Sets variables of a launcher while it exists.
class Launched {
 public:
  explicit Launched(std::vector<std::pair<const char*, const char*>> variables)
      : variables_(std::move(variables)) {
    for (const auto& [name, value] : variables_) setenv(name, value, 1);
  }
  ~Launched() {
    for (const auto& [name, value] : variables_) unsetenv(name);
  }
  Launched(const Launched&) = delete;
  Launched& operator=(const Launched&) = delete;

 private:
  std::vector<std::pair<const char*, const char*>> variables_;
};

// The third of four hosts with two ranks each.
TEST(Memory, RanksOfALauncher_AreThoseOfThisHost) {
  const ParallelConfig layout{.dp = 8};
  EXPECT_EQ(ranks_of_host(layout), (Range{0, 8}));
  const Launched launched(
      {{"RANK", "5"}, {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "2"}});
  EXPECT_EQ(ranks_of_host(layout), (Range{4, 6}));
}

// mpirun gives its ranks a terminal, and writes what they print there into a log.
TEST(Train, OnATerminalOfALauncher_PrintsNoControlCodes) {
  const TempFolder folder;
  TrainOptions o = tiny_run(folder);
  setenv("TERM", "xterm", 1);
  const auto printed = [&](const std::string& out) {
    o.out = folder / out;
    test::Captured terminal(100);
    cleave_train(o);
    return terminal.take();
  };
  EXPECT_THAT(printed("alone"), HasSubstr("\x1b[K"));
  const Launched launched({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}});
  const std::string text = printed("launched");
  EXPECT_THAT(text, HasSubstr("step 3/3"));
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
}

}  // namespace
}  // namespace cleave::memory_test
