#include "cleave/generate/continuous_batch.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/generate/generate.h"
#include "tests/support/ranks.h"
#include "tests/support/thrown.h"

// Oracle: each prompt alone, which neither waits nor shares a cache with others.
namespace cleave::continuous_batch_test {
namespace {

/// A model with fused attention (heads of 16), shared key heads and, if `window` > 0, windows.
std::unique_ptr<Model> make(int64_t window, int64_t max_positions = 64) {
  const std::string type = window > 0 ? "mistral" : "llama";
  return make_model(
      Json::parse(str(R"({"model_type": ")", type, R"(", "vocab_size": 61, "hidden_size": 64,
              "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
              "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "initializer_range": 0.3,
              "max_position_embeddings": )",
                      max_positions, window > 0 ? str(R"(, "sliding_window": )", window) : "", "}"),
                  "test"));
}

/// `count` prompts of 1 to 9 ids.
std::vector<Ids> prompts_of(int64_t count) {
  std::vector<Ids> out;
  for (int64_t p = 0; p < count; ++p) {
    Ids& ids = out.emplace_back();
    for (int64_t i = 0; i <= p * 5 % 9; ++i) ids.push_back((7 * p + 11 * i + 1) % 61);
  }
  return out;
}

/// Texts of prompt p end after 1 to 12 new ids, so that prompts end in another order.
bool ends_early(std::span<const int64_t> prompt, std::span<const int64_t> ids) {
  return static_cast<int64_t>(ids.size()) == 1 + (prompt.front() * 5 + 3) % 12;
}

void expect_same(const std::vector<Sequence>& got, const std::vector<Sequence>& want,
                 double tolerance, const std::string& where) {
  ASSERT_EQ(got.size(), want.size()) << where;
  for (size_t s = 0; s < want.size(); ++s) {
    EXPECT_EQ(got[s].ids, want[s].ids) << where;
    EXPECT_NEAR(got[s].score, want[s].score, tolerance) << where;
  }
}

struct Case {
  at::ScalarType dtype;
  int64_t window;
  int tp;
};

class ContinuousBatches : public ::testing::TestWithParam<Case> {};

// Another number of rows may use other products: mean log-probabilities then differ by some 1e-5 in
// fp32. Ids are equal unless two logits lie closer, which these do not.
TEST_P(ContinuousBatches, PromptsThatWait_GetTheirOwnResults) {
  const Case c = GetParam();
  const std::vector<Ids> prompts = prompts_of(13);
  test::on_ranks(c.tp, [&](const Axis& tp) {
    const auto model = make(c.window);
    parallelize_module(*model, tp, model->plan());
    materialize(*model, {.seed = 4, .dtype = c.dtype});
    GenerateSettings settings{.max_new_tokens = 20, .ends_text = ends_early};
    std::vector<Generation> alone;
    for (const Ids& prompt : prompts) alone.push_back(generate(*model, tp, {prompt}, settings));
    for (const int64_t max_sequences : {1, 2, 5, 64}) {
      settings.max_sequences = max_sequences;
      std::vector<int64_t> order;
      const Generation got = generate(*model, tp, prompts, settings, {},
                                      [&](int64_t p, const Generation&) { order.push_back(p); });
      ASSERT_EQ(order.size(), prompts.size());
      EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
      for (size_t p = 0; p < prompts.size(); ++p) {
        expect_same(got.prompts[p], alone[p].prompts[0], c.dtype == at::kDouble ? 1e-12 : 1e-4,
                    str("prompt ", p, " of ", max_sequences));
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Models, ContinuousBatches,
                         ::testing::Values(Case{at::kDouble, 0, 1}, Case{at::kFloat, 0, 1},
                                           Case{at::kFloat, 3, 1}, Case{at::kDouble, 3, 1},
                                           Case{at::kFloat, 3, 2}, Case{at::kFloat, 0, 3}));

TEST(ContinuousBatch, DrawnSequences_DoNotDependOnTheRoom) {
  const auto model = make(0);
  materialize(*model, {.seed = 4, .dtype = at::kDouble});
  const std::vector<Ids> prompts = prompts_of(7);
  GenerateSettings settings{.max_new_tokens = 9,
                            .num_return_sequences = 2,
                            .repetition_penalty = 1.3,
                            .do_sample = true,
                            .temperature = 1.5,
                            .seed = 5,
                            .ends_text = ends_early};
  const Generation want = generate(*model, Axis(), prompts, settings);
  for (const int64_t max_sequences : {1, 3, 4}) {
    settings.max_sequences = max_sequences;
    const Generation got = generate(*model, Axis(), prompts, settings);
    for (size_t p = 0; p < prompts.size(); ++p) {
      expect_same(got.prompts[p], want.prompts[p], 1e-12, str(p, " of ", max_sequences));
    }
  }
}

TEST(ContinuousBatch, PromptsThatComeLater_JoinTheRunningOnes) {
  const auto model = make(0);
  materialize(*model, {.seed = 4, .dtype = at::kDouble});
  const std::vector<Ids> prompts = prompts_of(6);
  const GenerateSettings settings{.max_new_tokens = 8, .max_sequences = 3};
  ContinuousBatch batch(*model, Axis(), settings);
  EXPECT_TRUE(batch.is_idle());
  EXPECT_TRUE(batch.step().empty());
  std::vector<std::vector<Sequence>> got(prompts.size());
  size_t num_added = 0;
  for (int step = 0; num_added < prompts.size() || !batch.is_idle(); ++step) {
    if (step % 3 == 0 && num_added < prompts.size()) {
      EXPECT_EQ(batch.add(prompts[num_added]), static_cast<int64_t>(num_added));
      ++num_added;
    }
    for (FinishedPrompt& done : batch.step()) {
      got[static_cast<size_t>(done.prompt)] = std::move(done.sequences);
    }
  }
  for (size_t p = 0; p < prompts.size(); ++p) {
    expect_same(got[p], generate(*model, Axis(), {prompts[p]}, settings).prompts[0], 1e-12,
                str("prompt ", p));
  }
}

// 2 places; the prompts need 6, 2, 2, 2 ids. Place 1 runs the long one, place 2 the three others in
// turn: three starts, and as many further steps as the long one needs ids, less those of its start
// and of the steps in which the others started. Batches that wait would take 6 + 2 steps.
TEST(ContinuousBatch, RoomOfEndedSequences_IsUsedInTheNextStep) {
  const auto model = make(0);
  materialize(*model, {.seed = 4, .dtype = at::kDouble});
  const EndsText ends = [](std::span<const int64_t> prompt, std::span<const int64_t> ids) {
    return ids.size() == (prompt.front() == 1 ? 6U : 2U);
  };
  ContinuousBatch batch(*model, Axis(), {.max_sequences = 2, .ends_text = ends});
  for (const Ids& prompt : {Ids{1}, Ids{2}, Ids{3}, Ids{4}}) batch.add(prompt);
  std::vector<std::vector<int64_t>> finished;  // by step
  while (!batch.is_idle()) {
    auto& now = finished.emplace_back();
    for (const FinishedPrompt& done : batch.step()) now.push_back(done.prompt);
  }
  // Steps: start 0 and 1; continue (1 ends); start 2; continue (2 ends); start 3; continue (3
  // ends); continue twice (0 has its 6 ids).
  const std::vector<std::vector<int64_t>> want{{}, {1}, {}, {2}, {}, {3}, {}, {0}};
  EXPECT_EQ(finished, want);
}

/// Counts the positions that a layer reads, with padding.
class CountedPositions final : public Wrap {
 public:
  explicit CountedPositions(int64_t& count) : count_(count) {}
  DTensor call(Layer& /*layer*/, const DTensor& x, const Context& context,
               const Next& next) override {
    count_ += x.size(0) * x.size(1);
    return next(x, context);
  }

 private:
  int64_t& count_;
};

// Padding at most doubles the work of the prompts: one of 300 ids does not make 300 of each. With
// beams, prompts wait until all of a batch have ended.
TEST(ContinuousBatch, LongPrompt_DoesNotPadTheShortOnes) {
  const auto model = make(0, 512);
  materialize(*model, {.seed = 4, .dtype = at::kDouble});
  int64_t num_positions = 0;
  model->sequence().front()->attach(std::make_unique<CountedPositions>(num_positions));
  std::vector<Ids> prompts = prompts_of(7);
  Ids& longest = *prompts.insert(prompts.begin() + 3, Ids());
  for (int64_t i = 0; i < 300; ++i) longest.push_back(i * i % 61);
  int64_t num_ids = 0;
  for (const Ids& prompt : prompts) num_ids += std::ssize(prompt);
  for (const int64_t num_beams : {1, 2}) {
    const GenerateSettings settings{.max_new_tokens = 1, .num_beams = num_beams};
    num_positions = 0;
    const Generation got = generate(*model, Axis(), prompts, settings);
    EXPECT_LE(num_positions, 2 * num_ids);
    for (size_t p = 0; p < prompts.size(); ++p) {
      expect_same(got.prompts[p], generate(*model, Axis(), {prompts[p]}, settings).prompts[0],
                  1e-12, str("prompt ", p, ", ", num_beams, " beams"));
    }
  }
}

// 4 places. The rows of a cache are as long as the longest: two of 5000 are about twice the ids of
// the first two prompts, three or four would be far more, and above the free 4 x 2048. So the
// others wait until the long one has its 3 ids.
TEST(ContinuousBatch, LongPrompt_DoesNotRunWithShortOnesThatWouldBePadded) {
  const auto model = make(0, 8192);
  materialize(*model, {.seed = 4});
  std::vector<Ids> prompts = prompts_of(4);
  prompts[0].clear();
  for (int64_t i = 0; i < 5000; ++i) prompts[0].push_back(i * i % 61);
  const GenerateSettings settings{.max_new_tokens = 3, .max_sequences = 4};
  ContinuousBatch batch(*model, Axis(), settings);
  for (const Ids& prompt : prompts) batch.add(prompt);
  std::vector<std::vector<int64_t>> finished;  // by step
  while (!batch.is_idle()) {
    auto& now = finished.emplace_back();
    for (const FinishedPrompt& done : batch.step()) {
      now.push_back(done.prompt);
      const Ids& prompt = prompts[static_cast<size_t>(done.prompt)];
      expect_same(done.sequences, generate(*model, Axis(), {prompt}, settings).prompts[0], 1e-4,
                  str("prompt ", done.prompt));
    }
  }
  // Steps: start 0; start 1; continue twice (both have 3 ids); start 2 and 3; continue twice.
  const std::vector<std::vector<int64_t>> want{{}, {}, {}, {0, 1}, {}, {}, {2, 3}};
  EXPECT_EQ(finished, want);
}

TEST(ContinuousBatch, PromptsOfLongRope_WaitUntilTheBatchHasEnded) {
  const auto model = make_model(Json::parse(
      R"({"model_type": "phi3", "vocab_size": 29, "hidden_size": 16, "intermediate_size": 24,
          "num_hidden_layers": 2, "num_attention_heads": 2, "initializer_range": 0.6,
          "pad_token_id": null, "eos_token_id": null, "max_position_embeddings": 12,
          "original_max_position_embeddings": 6, "rope_scaling": {"type": "longrope",
          "short_factor": [1, 1, 1, 1], "long_factor": [9, 7, 5, 3]}})",
      "test"));
  materialize(*model, {.seed = 3, .dtype = at::kDouble});
  const std::vector<Ids> prompts{{1, 2, 3}, {5}, {6, 7}, {8}};
  const GenerateSettings settings{.max_new_tokens = 7, .max_sequences = 2};
  const Generation got = generate(*model, Axis(), prompts, settings);
  for (size_t first = 0; first < prompts.size(); first += 2) {
    const Generation want =
        generate(*model, Axis(), {prompts[first], prompts[first + 1]}, settings);
    for (size_t p = 0; p < 2; ++p) {
      expect_same(got.prompts[first + p], want.prompts[p], 1e-12, str("prompt ", first + p));
    }
  }
}

TEST(ContinuousBatch, BeamsAndNoRoom_AreRefused) {
  const auto model = make(0);
  materialize(*model, {.seed = 4});
  const auto refusal = [&](const GenerateSettings& settings) {
    return std::string(test::thrown_by([&] { ContinuousBatch(*model, Axis(), settings); }).what());
  };
  EXPECT_EQ(refusal({.num_beams = 2}),
            "num_beams=2: a continuous batch has no beam search; call generate()");
  EXPECT_EQ(refusal({.max_sequences = 0}), "max_sequences=0 must be at least 1");
}

}  // namespace
}  // namespace cleave::continuous_batch_test
