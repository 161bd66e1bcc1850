#include "cleave/generate/processors.h"

#include <cmath>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cleave::processors_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

/// Scores of one sequence for the ids begin, begin + 1, ...
Scores scores_of(std::vector<float> values, int64_t begin = 0) {
  const auto width = static_cast<int64_t>(values.size());
  return {.values = at::tensor(values).view({1, width}),
          .held = {begin, begin + width},
          .vocab_size = begin + width,
          .axis = {}};
}

std::vector<float> row_of(const Scores& scores) {
  const auto row = scores.row(0);
  return {row.begin(), row.end()};
}

TEST(RepetitionPenalty, PositiveAndNegativeScoresOfSeenIds_AreLowered) {
  const Scores scores = scores_of({3, -2, 5, -1});
  apply_processors(scores, std::vector<Ids>{{0, 1, 0, 0}}, {.repetition_penalty = 2});
  EXPECT_THAT(row_of(scores), ElementsAre(1.5, -4, 5, -1));
}

TEST(RepetitionPenalty, ShardOfHigherIds_ChangesItsOwn) {
  const Scores scores = scores_of({3, -2}, 10);
  apply_processors(scores, std::vector<Ids>{{1, 11}}, {.repetition_penalty = 2});
  EXPECT_THAT(row_of(scores), ElementsAre(3, -4));
}

TEST(NoRepeatNgram, SecondOfAPairSeenBefore_IsForbidden) {
  const Scores scores = scores_of({1, 1, 1, 1});
  apply_processors(scores, std::vector<Ids>{{1, 2, 0, 1}}, {.no_repeat_ngram_size = 2});
  EXPECT_THAT(row_of(scores), ElementsAre(1, 1, -INFINITY, 1));
}

TEST(NoRepeatNgram, PenaltyAndNgram_BothApply) {
  const Scores scores = scores_of({4, 4, 4});
  apply_processors(scores, std::vector<Ids>{{0, 1, 0}},
                   {.no_repeat_ngram_size = 2, .repetition_penalty = 4});
  EXPECT_THAT(row_of(scores), ElementsAre(1, -INFINITY, 4));
}

TEST(RepeatingIds, ThreeGrams_CompareTheTwoIdsBefore) {
  EXPECT_THAT(repeating_ids(Ids{5, 6, 7, 5, 6, 8, 5, 6}, 3), UnorderedElementsAre(7, 8));
}

TEST(RepeatingIds, OneGrams_AreAllIds) {
  EXPECT_THAT(repeating_ids(Ids{5, 6, 5}, 1), UnorderedElementsAre(5, 6, 5));
}

TEST(RepeatingIds, FewerIdsThanAnNgram_ForbidNothing) {
  EXPECT_THAT(repeating_ids(Ids{5, 5}, 4), IsEmpty());
  EXPECT_THAT(repeating_ids(Ids{5, 5}, 3), IsEmpty());
}

}  // namespace
}  // namespace cleave::processors_test
