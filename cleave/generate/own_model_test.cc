#include <algorithm>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/generate/continuous_batch.h"
#include "cleave/generate/generate.h"
#include "tests/support/own_models.h"
#include "tests/support/ranks.h"

// Oracle: forward passes of the whole model on all ids so far, without a cache and without padding.
namespace cleave::own_model_test {
namespace {

using test::OwnModel;
using test::OwnOptions;
using Positions = OwnOptions::Positions;

/// Log-probabilities of the next id. [V]
Tensor next_after(Model& model, const Axis& tp, const Ids& ids) {
  const at::NoGradGuard no_grad;
  const DTensor in(at::tensor(ids, at::kLong).unsqueeze(0), tp, Replicate{});
  return at::log_softmax(model(in, Context()).full_tensor()[0][-1], 0);
}

Ids greedy(Model& model, const Axis& tp, Ids ids, int64_t count) {
  Ids out;
  for (int64_t i = 0; i < count; ++i) {
    ids.push_back(next_after(model, tp, ids).argmax().item<int64_t>());
    out.push_back(ids.back());
  }
  return out;
}

std::vector<OwnOptions> models() {
  return {{.uses_cache = false},
          {.uses_cache = false, .positions = Positions::kFromZero},
          {.uses_cache = false, .in_one_layer = true},
          {.uses_cache = true, .in_one_layer = true},
          {.uses_cache = true, .positions = Positions::kByContext}};
}

const std::vector<Ids> kPrompts{{5, 9, 4, 3, 7}, {8}, {7, 6, 2}, {1}, {2, 2}};

class OwnModels : public ::testing::TestWithParam<OwnOptions> {};

TEST_P(OwnModels, Greedy_GivesTheIdsOfWholeSequences) {
  for (const int num_ranks : {1, 2}) {
    test::on_ranks(num_ranks, [&](const Axis& tp) {
      OwnModel model(GetParam());
      parallelize_module(model, tp, model.plan(false));
      materialize(model, {.seed = 3, .dtype = at::kDouble});
      for (const int64_t max_sequences : {1, 2, 64}) {
        const Generation got =
            generate(model, tp, kPrompts, {.max_new_tokens = 9, .max_sequences = max_sequences});
        for (size_t p = 0; p < kPrompts.size(); ++p) {
          EXPECT_EQ(got.prompts[p][0].ids, greedy(model, tp, kPrompts[p], 9))
              << "prompt " << p << " of " << max_sequences << " on " << num_ranks;
        }
      }
    });
  }
}

// With top_k = 1 each drawn id is the best one.
TEST_P(OwnModels, DrawnSequences_AreThoseOfWholeSequences) {
  OwnModel model(GetParam());
  materialize(model, {.seed = 3, .dtype = at::kDouble});
  const Generation got = generate(model, Axis(), kPrompts,
                                  {.max_new_tokens = 6,
                                   .num_return_sequences = 2,
                                   .do_sample = true,
                                   .top_k = 1,
                                   .max_sequences = 4});
  for (size_t p = 0; p < kPrompts.size(); ++p) {
    for (const Sequence& sequence : got.prompts[p]) {
      EXPECT_EQ(sequence.ids, greedy(model, Axis(), kPrompts[p], 6)) << "prompt " << p;
    }
  }
}

// As many beams as ids: all first ids are kept, so the best of all pairs of ids is found.
TEST_P(OwnModels, BeamsOfAllIds_FindTheBestPair) {
  OwnModel model(GetParam());
  materialize(model, {.seed = 3, .dtype = at::kDouble});
  const Generation got =
      generate(model, Axis(), kPrompts, {.max_new_tokens = 2, .num_beams = OwnModel::kVocab});
  for (size_t p = 0; p < kPrompts.size(); ++p) {
    const Tensor first = next_after(model, Axis(), kPrompts[p]);
    Ids best;
    double best_score = -1e9;
    for (int64_t id = 0; id < OwnModel::kVocab; ++id) {
      Ids ids = kPrompts[p];
      ids.push_back(id);
      const auto [score, second] = next_after(model, Axis(), ids).max(0);
      const double sum = (first[id] + score).item<double>();
      if (sum > best_score) best = {id, second.item<int64_t>()};
      best_score = std::max(best_score, sum);
    }
    EXPECT_EQ(got.prompts[p][0].ids, best) << "prompt " << p;
    EXPECT_NEAR(got.prompts[p][0].score, best_score / 2, 1e-5);  // scores are of fp32 logits
  }
}

// The longer prompt ends at the last position; the shorter one continues in the same batch.
TEST_P(OwnModels, FinishedSequence_DoesNotPassTheLastPosition) {
  OwnOptions options = GetParam();
  options.max_positions = 8;
  OwnModel model(options);
  materialize(model, {.seed = 3, .dtype = at::kDouble});
  const std::vector<Ids> prompts{{1, 2, 3, 4, 5, 6, 7}, {3}};
  const Generation got = generate(model, Axis(), prompts, {.max_new_tokens = 100});
  EXPECT_EQ(got.prompts[0][0].ids, greedy(model, Axis(), prompts[0], 2));
  EXPECT_EQ(got.prompts[1][0].ids, greedy(model, Axis(), prompts[1], 8));
}

// Neither keeps the other from the batch: the second prompt starts while the first one runs.
TEST_P(OwnModels, PromptsThatComeLater_JoinTheRunningOnes) {
  OwnModel model(GetParam());
  materialize(model, {.seed = 3, .dtype = at::kDouble});
  ContinuousBatch batch(model, Axis(), {.max_new_tokens = 6});
  batch.add({4});
  EXPECT_TRUE(batch.step().empty());
  batch.add({7, 6, 2});
  std::vector<FinishedPrompt> done;
  int num_steps = 1;
  for (; !batch.is_idle(); ++num_steps) {
    for (FinishedPrompt& one : batch.step()) done.push_back(std::move(one));
  }
  ASSERT_EQ(done.size(), 2U);
  EXPECT_EQ(done[0].sequences[0].ids, greedy(model, Axis(), {4}, 6));
  EXPECT_EQ(done[1].sequences[0].ids, greedy(model, Axis(), {7, 6, 2}, 6));
  EXPECT_LT(num_steps, 12);  // one after the other
}

std::string name_of(const ::testing::TestParamInfo<OwnOptions>& info) {
  const OwnOptions& o = info.param;
  return str(o.uses_cache ? "Cache" : "NoCache", o.in_one_layer ? "InOneLayer" : "", "Positions",
             static_cast<int>(o.positions));
}

INSTANTIATE_TEST_SUITE_P(Kinds, OwnModels, ::testing::ValuesIn(models()), name_of);

}  // namespace
}  // namespace cleave::own_model_test
