#include "cleave/generate/predict.h"

#include <cmath>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/generate/runnable.h"
#include "tests/support/golden.h"
#include "tests/support/ranks.h"

namespace cleave {
namespace {

TEST(Ranked, Scores_BecomeProbabilitiesLargestFirst) {
  const Tensor scores = at::tensor({std::log(1.0), std::log(6.0), std::log(3.0)}, at::kDouble);
  const auto all = ranked(scores, 0);
  ASSERT_EQ(all.size(), 3U);
  EXPECT_EQ(all[0].first, 1);
  EXPECT_NEAR(all[0].second, 0.6, 1e-12);
  EXPECT_EQ(all[2].first, 0);
  EXPECT_NEAR(all[2].second, 0.1, 1e-12);
  EXPECT_EQ(ranked(scores, 2).size(), 2U);
  EXPECT_EQ(ranked(scores, 9).size(), 3U);
}

// Oracle: transformers' logits of the trained classifier; six digits are recorded.
TEST(ScoresOf, RealReviewsOfUnequalLength_AreThoseOfTransformers) {
  CLEAVE_NEEDS_DATA();
  const Json golden =
      Json::parse_file(test::data_folder() + "/goldens/real-bert-imdb/predictions.json");
  const Json first = golden.at("first_100");
  std::vector<std::vector<int64_t>> rows;
  std::vector<double> want;
  for (size_t i = 0; i < 10; ++i) {  // those whose ids are recorded
    const Json ids = first.at(i).at("ids");
    rows.emplace_back();
    for (size_t k = 0; k < ids.size(); ++k) rows.back().push_back(ids.at(k).as_int());
    for (const size_t c : {size_t{0}, size_t{1}})
      want.push_back(first.at(i).at("logits").at(c).as_number());
  }
  const Runnable runnable(test::data_folder() + "/models/bert-imdb", "", "cpu", {"classify"});
  for (const int tp : {1, 2, 4}) {
    test::on_ranks(tp, [&](const Axis& axis) {
      const auto model = runnable.load(axis);
      const Tensor scores = scores_of(*model, axis, rows);
      EXPECT_LE(test::largest_difference(scores, at::tensor(want).view({-1, 2})), 2e-5);
    });
  }
}

}  // namespace
}  // namespace cleave
