#include <cmath>
#include <map>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "cleave/generate/generate.h"

// Oracle: the probabilities in closed form, from the model's logits. Bounds are chi-square values
// that a correct sampler exceeds once in a thousand; seeds are fixed, so the test is deterministic.
namespace cleave::sampling_test {
namespace {

constexpr int64_t kDraws = 3000;
constexpr int64_t kPerCall = 100;  // sequences or prompts per call

class Sampling : public ::testing::Test {
 protected:
  Sampling()
      : model_(make_model(Json::parse(
            R"({"model_type": "llama", "vocab_size": 6, "hidden_size": 8, "intermediate_size": 16,
                "num_hidden_layers": 1, "num_attention_heads": 2, "rms_norm_eps": 1e-5,
                "initializer_range": 0.6, "max_position_embeddings": 8})",
            "test"))) {
    materialize(*model_, {.seed = 4, .dtype = at::kFloat});
    at::set_num_threads(1);  // the model is tiny
  }

  /// Probabilities of the id after the prompt.
  std::vector<double> probabilities(double temperature) {
    const at::NoGradGuard no_grad;
    const Tensor ids = at::tensor(prompt_, at::kLong).unsqueeze(0);
    const DTensor logits = (*model_)(DTensor(ids, Axis(), Replicate{}), Context{});
    const Tensor last = logits.local()[0][ids.size(1) - 1].to(at::kDouble);
    const Tensor p = (last / temperature).softmax(0);
    return {p.const_data_ptr<double>(), p.const_data_ptr<double>() + p.numel()};
  }

  /// kDraws ids after the prompt.
  Ids drawn(GenerateSettings settings) {
    settings.max_new_tokens = 1;
    settings.num_return_sequences = kPerCall;
    Ids out;
    for (int64_t seed = 0; seed < kDraws / kPerCall; ++seed) {
      settings.seed = static_cast<uint64_t>(seed);
      const Generation got = generate(*model_, Axis(), {prompt_}, settings);
      for (const Sequence& s : got.prompts[0]) out.push_back(s.ids[0]);
    }
    return out;
  }

  static double chi_square(const std::vector<double>& got, const std::vector<double>& p) {
    double sum = 0;
    for (size_t i = 0; i < p.size(); ++i) {
      const double want = p[i] * static_cast<double>(kDraws);
      if (want > 0) sum += (got[i] - want) * (got[i] - want) / want;
    }
    return sum;
  }

  std::unique_ptr<Model> model_;
  Ids prompt_{1, 2, 3};
};

TEST_F(Sampling, OneId_OccursWithItsProbability) {
  const auto p = probabilities(0.8);
  std::vector<double> count(p.size());
  for (const int64_t id : drawn({.do_sample = true, .temperature = 0.8, .top_k = 0})) {
    ++count[static_cast<size_t>(id)];
  }
  EXPECT_LT(chi_square(count, p), 20.5);  // 5 degrees of freedom
}

TEST_F(Sampling, TopK_SamplesOnlyAmongTheBest) {
  auto p = probabilities(1);
  std::vector<double> sorted = p;
  std::sort(sorted.rbegin(), sorted.rend());
  const double kept = sorted[0] + sorted[1] + sorted[2];
  for (double& x : p) x = x < sorted[2] ? 0 : x / kept;
  std::vector<double> count(p.size());
  for (const int64_t id : drawn({.do_sample = true, .top_k = 3})) {
    ASSERT_GT(p[static_cast<size_t>(id)], 0);
    ++count[static_cast<size_t>(id)];
  }
  EXPECT_LT(chi_square(count, p), 13.8);  // 2 degrees of freedom
}

TEST_F(Sampling, TwoBeams_AreSampledWithoutReplacement) {
  const auto p = probabilities(1);
  // The first draw is i with p_i, the second is j with p_j / (1 - p_i).
  std::vector<double> want(p.size());
  for (size_t i = 0; i < p.size(); ++i) {
    want[i] += p[i] / 2;
    for (size_t j = 0; j < p.size(); ++j) {
      if (j != i) want[j] += p[i] * p[j] / (1 - p[i]) / 2;
    }
  }
  std::vector<double> count(p.size());
  const std::vector<Ids> prompts(kPerCall, prompt_);
  for (int64_t first = 0; first < kDraws; first += kPerCall) {
    const Generation got = generate(*model_, Axis(), prompts,
                                    {.max_new_tokens = 1,
                                     .num_beams = 2,
                                     .num_return_sequences = 2,
                                     .do_sample = true,
                                     .top_k = 0,
                                     .first_prompt = first});
    for (const auto& pair : got.prompts) {
      ASSERT_EQ(pair.size(), 2U);
      ASSERT_NE(pair[0].ids, pair[1].ids);
      for (const Sequence& s : pair) count[static_cast<size_t>(s.ids[0])] += 0.5;
    }
  }
  EXPECT_LT(chi_square(count, want), 20.5);
}

TEST_F(Sampling, SequencesOfAPrompt_DifferFromEachOtherAndRepeatWithTheSeed) {
  const GenerateSettings settings{
      .max_new_tokens = 5, .num_return_sequences = 4, .do_sample = true, .seed = 9};
  const auto first = generate(*model_, Axis(), {prompt_}, settings).prompts[0];
  const auto again = generate(*model_, Axis(), {prompt_}, settings).prompts[0];
  std::map<Ids, int> kinds;
  for (size_t s = 0; s < 4; ++s) {
    EXPECT_EQ(first[s].ids, again[s].ids);
    ++kinds[first[s].ids];
    if (s > 0) {
      EXPECT_GE(first[s - 1].score, first[s].score);
    }
  }
  EXPECT_GT(kinds.size(), 2U);
}

}  // namespace
}  // namespace cleave::sampling_test
