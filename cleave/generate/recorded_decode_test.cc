// Decoding by a recorded step, for which the tests take the CPU with fibers and a recorder that
// calls the work again. Oracle: decoding without it.
#include <atomic>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/generate/decoder.h"
#include "cleave/generate/generate.h"
#include "cleave/kernels/recorded_work.h"
#include "cleave/parallel/parallelize.h"
#include "tests/support/fiber_kernels.h"
#include "tests/support/golden.h"
#include "tests/support/ranks.h"

namespace cleave::recorded_decode_test {
namespace {

std::atomic<int> num_recordings = 0;  // of all ranks
std::atomic<int> num_replays = 0;

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

const std::vector<Ids> kPrompts{{5, 6, 7, 9, 11}, {8}, {3, 4, 5}};

class RecordedDecode : public ::testing::TestWithParam<const char*> {
 protected:
  RecordedDecode() : model_(make_model(Json::parse_file(folder_ + "/config.json"))) {
    test::fill(*model_, test::read_tensors(folder_), at::kFloat);
  }
  Generation generated(const GenerateSettings& settings) {
    return generate(*model_, Axis(), kPrompts, settings);
  }
  /// The same of the model over `num_ranks` ranks, which agree.
  Generation generated_over(int num_ranks, const GenerateSettings& settings) {
    const test::Tensors weights = test::read_tensors(folder_);
    std::vector<Generation> all(static_cast<size_t>(num_ranks));
    test::on_ranks(num_ranks, [&](const Axis& tp) {
      const auto model = make_model(Json::parse_file(folder_ + "/config.json"));
      parallelize_module(*model, tp, model->plan());
      test::fill(*model, weights, at::kFloat);
      all[static_cast<size_t>(tp.rank())] = generate(*model, tp, kPrompts, settings);
    });
    for (const Generation& of_rank : all) {
      for (size_t p = 0; p < kPrompts.size(); ++p) {
        EXPECT_EQ(of_rank.prompts[p][0].ids, all[0].prompts[p][0].ids);
        EXPECT_EQ(of_rank.prompts[p][0].score, all[0].prompts[p][0].score);
      }
    }
    return all[0];
  }
  /// Expects the same ids and, up to rounding, the same scores of recorded steps, on one rank and
  /// on `num_ranks`.
  void expect_same(const GenerateSettings& settings, int num_ranks = 1) {
    const Generation want = generated(settings);
    const RecordingDevice device;
    const Generation got =
        num_ranks == 1 ? generated(settings) : generated_over(num_ranks, settings);
    EXPECT_GT(num_replays, num_recordings);
    EXPECT_GE(num_recordings, num_ranks);
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

// The recording contains the collectives. Some ranks share a KV head; vocabularies are uneven.
TEST_P(RecordedDecode, GreedyTextsOverRanks_AreTheSame) {
  for (const int num_ranks : {2, 3}) {
    expect_same({.max_new_tokens = 5, .eos_ids = {}}, num_ranks);
    EXPECT_EQ(num_replays, 3 * num_ranks);
  }
}

TEST_P(RecordedDecode, SampledTextsOverRanks_AreTheSame) {
  expect_same({.max_new_tokens = 4, .do_sample = true, .top_k = 5, .seed = 3, .eos_ids = {}}, 2);
}

// A step that began ahead of an end is not needed.
TEST_P(RecordedDecode, GreedyTextsThatEnd_AreTheSame) {
  const EndsText ends = [](std::span<const int64_t> prompt, std::span<const int64_t> ids) {
    return ids.size() == 3 + prompt.size();
  };
  expect_same({.max_new_tokens = 12, .eos_ids = {}, .ends_text = ends});
}

TEST_P(RecordedDecode, SampledTexts_AreTheSame) {
  GenerateSettings settings{.max_new_tokens = 6, .do_sample = true, .seed = 3, .eos_ids = {}};
  for (const auto& [temperature, top_k, top_p] :
       {std::tuple<double, int64_t, double>{1.5, 0, 1}, {1.2, 9, 0.7}}) {
    settings.temperature = temperature;
    settings.top_k = top_k;
    settings.top_p = top_p;
    expect_same(settings);
    EXPECT_EQ(num_replays, 4);
  }
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
  const Chooser best{.on_host = [](const Scores& scores) { return best_choices(scores, scores); }};
  const RecordingDevice device;
  const std::vector<double> got = choices_with(
      [&](Decoder& decoder, const Ids& next) { return decoder.step_chosen(next, best, false); });
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

// At a high temperature more tokens are likely than the device can compare; then the host samples.
TEST(RecordedSampling, ByTheHostIfTheDeviceCannot_GivesTheSameTexts) {
  const auto model = make_model(Json::parse(R"({
      "model_type": "llama", "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
      "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5,
      "initializer_range": 0.3, "vocab_size": 2100, "max_position_embeddings": 64})",
                                            "test"));
  materialize(*model, {.seed = 4});
  for (const auto& [top_k, is_possible] :
       {std::pair<int64_t, bool>{0, false}, {300, false}, {200, true}}) {
    GenerateSettings settings{.max_new_tokens = 8, .do_sample = true, .eos_ids = {}};
    settings.temperature = 5;
    settings.top_k = top_k;
    settings.top_p = 0.99;
    const Generation want = generate(*model, Axis(), kPrompts, settings);
    const RecordingDevice device;
    const Generation got = generate(*model, Axis(), kPrompts, settings);
    for (size_t p = 0; p < kPrompts.size(); ++p) {
      EXPECT_EQ(got.prompts[p][0].ids, want.prompts[p][0].ids);
      EXPECT_NEAR(got.prompts[p][0].score, want.prompts[p][0].score, 1e-4);
    }
    // top_k 0: the first recorded step, the one ahead and the first again.
    EXPECT_EQ(num_replays, is_possible || top_k > 0 ? 6 : 8) << top_k;
  }
}

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
