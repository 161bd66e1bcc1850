// Generation on fake devices. Oracle: the same weights on the CPU, in fp64, where two ids hardly
// ever have scores so close that rounding decides.
#include "cleave/generate/generate.h"

#include <map>
#include <mutex>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/parallel/plan.h"
#include "tests/fake_device/on_fake_device.h"
#include "tests/support/train_grid.h"

namespace cleave::fake_generate_test {
namespace {

using generation::GenerateSettings;
using generation::Generation;
using generation::Ids;

const fake_device::RegisterFirst registered;

/// Two prompts of different lengths, so that one is padded; or one.
std::vector<Ids> prompts_of(int number) {
  std::vector<Ids> prompts{{3, 7, 11, 2}, {5, 1}};
  prompts.resize(static_cast<size_t>(number));
  return prompts;
}

/// Ids of rank 0, and the most waits between two tokens of any rank.
struct Result {
  std::vector<Ids> ids;
  int64_t most_waits = 0;
};

Result generate_on(const std::string& family, int tp, bool is_device, int num_prompts,
                   GenerateSettings settings) {
  settings.max_new_tokens = 8;
  Result result;
  std::mutex mutex;
  test::on_world(tp, [&](World& world) {
    const at::Device device = is_device ? fake_device::take_device(world) : at::Device(at::kCPU);
    const Axis axis = Mesh::build(world, {{"tp", tp}})["tp"];
    const auto model = test::grid_model({.family = family});
    parallelize_module(*model, axis, model->plan());
    materialize(*model, {.seed = 3, .dtype = at::kDouble});
    move_to(*model, device);
    int64_t most = 0, token = 0;
    auto before = fake_device::counts_of(world.rank());
    const auto on_token = [&](int64_t prompt, int64_t, int64_t) {
      if (prompt != 0) return;
      const auto now = fake_device::counts_of(world.rank());
      if (token++ > 0) most = std::max(most, (now - before).waits());
      before = now;
    };
    const Generation made = generate(*model, axis, prompts_of(num_prompts), settings, on_token);
    const std::scoped_lock lock(mutex);
    result.most_waits = std::max(result.most_waits, most);
    if (world.rank() != 0) return;
    for (const auto& sequences : made.prompts) {
      for (const auto& sequence : sequences) result.ids.push_back(sequence.ids);
    }
  });
  return result;
}

class GenerateOnDevice : public testing::TestWithParam<std::string> {};

TEST_P(GenerateOnDevice, EveryId_IsTheCpusAndCostsOneWait) {
  for (const int num_prompts : {1, 2}) {
    for (const bool samples : {false, true}) {
      const GenerateSettings settings{.do_sample = samples, .seed = 5};
      const Result want = generate_on(GetParam(), 1, false, num_prompts, settings);
      ASSERT_EQ(want.ids.size(), static_cast<size_t>(num_prompts));
      for (const int tp : {1, 2}) {
        SCOPED_TRACE(str("tp ", tp, ", ", num_prompts, " prompts, sampling ", samples));
        const Result have = generate_on(GetParam(), tp, true, num_prompts, settings);
        EXPECT_EQ(have.ids, want.ids);
        // Experts read the number of their rows in each layer.
        const int64_t of_experts = GetParam() == "mixtral" ? 8 : 0;
        EXPECT_LE(have.most_waits, 1 + of_experts);
      }
    }
  }
}

TEST_P(GenerateOnDevice, Beams_AreTheCpus) {
  const GenerateSettings settings{.num_beams = 3};
  const Result want = generate_on(GetParam(), 1, false, 2, settings);
  EXPECT_EQ(generate_on(GetParam(), 2, true, 2, settings).ids, want.ids);
}
INSTANTIATE_TEST_SUITE_P(Family, GenerateOnDevice,
                         testing::Values("llama", "gpt2", "qwen3", "gemma3_text", "phi3",
                                         "mixtral"),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace cleave::fake_generate_test
