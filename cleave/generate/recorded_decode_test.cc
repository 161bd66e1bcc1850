// Decoding by a recorded step, for which the tests take the CPU with fibers and a recorder that
// calls the work again. Oracle: decoding without it.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/generate/decoder.h"
#include "cleave/generate/generate.h"
#include "cleave/kernels/recorded_work.h"
#include "tests/support/fiber_kernels.h"
#include "tests/support/golden.h"

namespace cleave::recorded_decode_test {
namespace {

int num_recordings = 0;
int num_replays = 0;

class CalledAgain : public RecordedWork {
 public:
  explicit CalledAgain(const std::function<void()>& work) : work_(work) {
    ++num_recordings;
    work_();
  }
  void replay() override {
    ++num_replays;
    work_();
  }

 private:
  std::function<void()> work_;
};

/// While it lives, the CPU has the CUDA kernels and a recorder.
class RecordingDevice {
 public:
  RecordingDevice() {
    num_recordings = num_replays = 0;
    set_recorder(at::kCPU, [](const std::function<void()>& work) -> std::unique_ptr<RecordedWork> {
      return std::make_unique<CalledAgain>(work);
    });
  }
  ~RecordingDevice() { set_recorder(at::kCPU, nullptr); }
  RecordingDevice(const RecordingDevice&) = delete;
  RecordingDevice& operator=(const RecordingDevice&) = delete;

 private:
  test::FiberKernels kernels_;
};

class RecordedDecode : public ::testing::TestWithParam<const char*> {
 protected:
  RecordedDecode() : model_(make_model(Json::parse_file(folder_ + "/config.json"))) {
    test::fill(*model_, test::read_tensors(folder_), at::kFloat);
  }
  Generation generated(const GenerateSettings& settings) {
    return generate(*model_, Axis(), {{5, 6, 7, 9, 11}, {8}, {3, 4, 5}}, settings);
  }
  /// Expects the same ids and, up to rounding, the same scores of a recorded step.
  void expect_same(const GenerateSettings& settings) {
    const Generation want = generated(settings);
    const RecordingDevice device;
    const Generation got = generated(settings);
    EXPECT_GT(num_replays, num_recordings);
    EXPECT_GE(num_recordings, 1);
    for (size_t p = 0; p < want.prompts.size(); ++p) {
      ASSERT_EQ(got.prompts[p].size(), want.prompts[p].size());
      for (size_t s = 0; s < want.prompts[p].size(); ++s) {
        EXPECT_EQ(got.prompts[p][s].ids, want.prompts[p][s].ids);
        EXPECT_NEAR(got.prompts[p][s].score, want.prompts[p][s].score, 1e-4);
      }
    }
  }

  std::string folder_ = test::golden_folder(GetParam());
  std::unique_ptr<Model> model_;
};

// Prompts have different lengths; the window of Mistral and Gemma is shorter than the texts.
TEST_P(RecordedDecode, GreedyTexts_AreTheSame) {
  expect_same({.max_new_tokens = 12, .eos_ids = {}});
  EXPECT_EQ(num_replays, 10);  // the prompts and the second token are not recorded
}

// A step that began ahead of an end is not needed.
TEST_P(RecordedDecode, GreedyTextsThatEnd_AreTheSame) {
  const EndsText ends = [](std::span<const int64_t> prompt, std::span<const int64_t> ids) {
    return ids.size() == 3 + prompt.size();
  };
  expect_same({.max_new_tokens = 12, .eos_ids = {}, .ends_text = ends});
}

TEST_P(RecordedDecode, SampledTexts_AreTheSame) {
  expect_same({.max_new_tokens = 8, .do_sample = true, .seed = 3, .eos_ids = {}});
}

// Each step is started with the choices of the one before it, or with other ids.
TEST_P(RecordedDecode, StepsWithOtherIds_AreTheSame) {
  const std::vector<Ids> prompts{{5, 6, 7}, {8}};
  const auto choices_with = [&](auto&& step) {
    const c10::InferenceMode inference;
    Decoder decoder(*model_, Axis(), prompts, 8);
    decoder.prefill(1);
    std::vector<double> out;
    Ids next{3, 4};
    for (int i = 0; i < 6; ++i) {
      if (i == 3 || i == 4) next = {6, 2};  // not the best ones
      const std::vector<Choice> choices = step(decoder, next);
      for (size_t r = 0; r < next.size(); ++r) {
        next[r] = choices[r].id;
        out.push_back(static_cast<double>(choices[r].id));
        out.push_back(choices[r].log_prob);
      }
    }
    return out;
  };
  const std::vector<double> want = choices_with([](Decoder& decoder, const Ids& next) {
    const Scores scores = decoder.step(next);
    return best_choices(scores, scores);
  });
  const RecordingDevice device;
  const std::vector<double> got = choices_with(
      [](Decoder& decoder, const Ids& next) { return decoder.step_best(next, false); });
  EXPECT_GT(num_replays, num_recordings);
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-4);
}

TEST_P(RecordedDecode, Beams_AreTheSame) {
  expect_same({.max_new_tokens = 8, .num_beams = 2, .eos_ids = {}});
}

// Each time the batch changes, the cache and its recording do.
TEST_P(RecordedDecode, PromptsThatJoinTheBatch_AreTheSame) {
  expect_same({.max_new_tokens = 8, .max_sequences = 2, .eos_ids = {}});
}

INSTANTIATE_TEST_SUITE_P(Families, RecordedDecode,
                         ::testing::Values("llama-mha", "llama-gqa-llama3rope", "qwen2", "qwen3",
                                           "mistral", "smollm3", "olmo2", "gemma2", "gemma3",
                                           "gpt2"),
                         [](const auto& family) {
                           std::string name = family.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

// Experts wait for the number of their rows.
TEST(UnrecordedDecode, ModelWithExperts_IsNotRecorded) {
  const std::string folder = test::golden_folder("mixtral");
  const auto model = make_model(Json::parse_file(folder + "/config.json"));
  test::fill(*model, test::read_tensors(folder), at::kFloat);
  const RecordingDevice device;
  generate(*model, Axis(), {{5, 6, 7}}, {.max_new_tokens = 6, .eos_ids = {}});
  EXPECT_EQ(num_recordings, 0);
}

}  // namespace
}  // namespace cleave::recorded_decode_test
