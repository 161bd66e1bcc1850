#include <cmath>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/generate/generate.h"
#include "cleave/parallel/plan.h"
#include "tests/support/ranks.h"
#include "tests/support/thrown.h"

// Beams that cannot continue, and logits far from zero. Oracle: transformers 5.23.0 where a comment
// names it, else log_softmax in fp64 of the model's logits.
namespace cleave::beams_test {
namespace {

std::unique_ptr<Model> small_llama(int64_t vocab_size, const Axis& tp) {
  auto model = make_model(Json::parse(str(R"({"model_type": "llama", "vocab_size": )", vocab_size,
                                          R"(, "hidden_size": 16, "intermediate_size": 24,
      "num_hidden_layers": 1, "num_attention_heads": 4, "max_position_embeddings": 32})"),
                                      "config.json"));
  parallelize_module(*model, tp, model->plan(false));
  materialize(*model, {.seed = 1});
  return model;
}

/// The beams of a new model for one prompt, on one rank and on two.
std::vector<Sequence> beams_of(int64_t vocab_size, const Ids& prompt,
                               const GenerateSettings& settings) {
  std::vector<Sequence> out;
  for (const int ranks : {2, 1}) {
    test::on_ranks(ranks, [&](const Axis& tp) {
      const auto model = small_llama(vocab_size, tp);
      const Generation got = generate(*model, tp, {prompt}, settings);
      if (tp.rank() == 0) out = got.prompts.at(0);
    });
  }
  return out;
}

// transformers: [[0, 1, 2], [0, 1, 2]] with the scores -1e9.
TEST(Beams, AllContinuationsForbiddenInTheFirstStep_GiveNoIdsAndTheLowestScore) {
  const auto got = beams_of(
      3, {0, 1, 2},
      {.max_new_tokens = 4, .num_beams = 2, .num_return_sequences = 2, .no_repeat_ngram_size = 1});
  ASSERT_EQ(got.size(), 2U);
  for (const Sequence& s : got) {
    EXPECT_EQ(s.ids, Ids{});
    EXPECT_EQ(s.score, -1e9);
  }
}

// transformers: scores -1e9 and a first sequence of the two remaining ids.
TEST(Beams, AllContinuationsForbiddenLater_GiveTheIdsBeforeAndTheLowestScore) {
  const GenerateSettings settings{
      .max_new_tokens = 4, .num_beams = 2, .num_return_sequences = 2, .no_repeat_ngram_size = 1};
  const auto got = beams_of(5, {0, 1, 2}, settings);
  ASSERT_EQ(got.size(), 2U);
  for (const Sequence& s : got) {
    EXPECT_TRUE(s.ids == (Ids{3, 4}) || s.ids == (Ids{4, 3}));
    EXPECT_EQ(s.score, -1e9);
  }
  EXPECT_NE(got[0].ids, got[1].ids);
}

// transformers: four sequences, the last with no new id and the score -1e9.
TEST(Beams, MoreBeamsThanContinuations_AreFilledIn) {
  const auto got =
      beams_of(3, {0, 1, 2}, {.max_new_tokens = 1, .num_beams = 4, .num_return_sequences = 4});
  ASSERT_EQ(got.size(), 4U);
  for (size_t i = 0; i < 3; ++i) EXPECT_GT(got[i].score, -10);
  EXPECT_EQ(got[3].ids, Ids{});
  EXPECT_EQ(got[3].score, -1e9);
}

// transformers continues with the beams that have a token left.
TEST(Beams, SampledWithAForbiddenBeam_ContinueWithTheOthers) {
  const auto got = beams_of(6, {0, 1, 2, 3},
                            {.max_new_tokens = 3,
                             .num_beams = 2,
                             .num_return_sequences = 2,
                             .no_repeat_ngram_size = 1,
                             .do_sample = true,
                             .top_k = 0,
                             .top_p = 0.9,
                             .eos_ids = {5}});
  EXPECT_EQ(got.size(), 2U);
}

TEST(Beams, ScoresOfLargeLogits_AreThoseOfLogSoftmax) {
  const Axis one;
  const auto model = small_llama(6, one);
  const Tensor ids = at::tensor({3, 1}, at::kLong).view({1, 2});
  Context context;
  {
    // Adds the same large vector along the last hidden state to all rows of the head.
    const at::NoGradGuard no_grad;
    DTensor x(ids, one, Replicate{});
    const auto layers = model->sequence();
    for (size_t i = 0; i + 1 < layers.size(); ++i) x = (*layers[i])(x, context);
    const Tensor h = x.local()[0][1];
    const Tensor large = h / h.dot(h) * 1e5;
    for (const auto& p : model->parameters()) {
      if (p->name() == "lm_head.weight") p->leaf().detach().mul_(5).add_(large);
    }
  }
  const at::NoGradGuard no_grad;
  const Tensor logits = (*model)(DTensor(ids, one, Replicate{}), context).local()[0][1];
  ASSERT_GT(logits.min().item<double>(), 5e4);
  const Tensor want = logits.to(at::kDouble).log_softmax(0);
  const Generation got = generate(*model, one, {{3, 1}},
                                  {.max_new_tokens = 1, .num_beams = 3, .num_return_sequences = 3});
  for (const Sequence& s : got.prompts.at(0)) {
    const double score = want[s.ids.at(0)].item<double>();
    EXPECT_NEAR(s.score, score, 1e-6 * std::abs(score));  // rounded to float
  }
}

TEST(Generate, TemperatureThatFloatsCannotDivideBy_IsRefused) {
  const auto model = small_llama(6, Axis());
  const Error error = test::thrown_by(
      [&] { generate(*model, Axis(), {{1}}, {.do_sample = true, .temperature = 1e-40}); });
  EXPECT_EQ(error.code(), Code::kUsage);
  EXPECT_EQ(std::string(error.what()),
            "temperature=1e-40 must be at least 1e-06; turn do_sample off for greedy decoding");
}

}  // namespace
}  // namespace cleave::beams_test
