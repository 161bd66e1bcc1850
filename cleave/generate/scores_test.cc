#include "cleave/generate/scores.h"

#include <cmath>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/generate/search.h"
#include "tests/support/ranks.h"
#include "tests/support/shard_scores.h"
#include "tests/support/thrown.h"

namespace cleave::scores_test {
namespace {

/// The results of `act` on the shard of each rank of `tp`.
template <class Act>
auto on_shards(const Tensor& whole, int tp, const Act& act) {
  std::vector<decltype(act(std::declval<const Scores&>()))> all(static_cast<size_t>(tp));
  test::on_ranks(tp, [&](const Axis& axis) {
    all[static_cast<size_t>(axis.rank())] = act(test::shard_of(whole, axis));
  });
  return all;
}

const Tensor kWhole =  // rows: a tie across shards; large numbers; one finite score
    at::tensor({1.F,       5.F,       2.F,       0.F,       5.F,       -3.F,  5.F,
                300.F,     301.F,     299.F,     0.F,       -300.F,    301.F, 1.F,
                -INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY, 4.F,   -INFINITY})
        .view({3, 7});

TEST(Scores, LogSumExp_IsThatOfTheWholeRowOnAnyTp) {
  const Tensor want = kWhole.to(at::kDouble).logsumexp(1);
  for (const int tp : {1, 2, 3, 4, 8}) {
    for (const auto& got : on_shards(kWhole, tp, log_sum_exp)) {
      for (int64_t r = 0; r < 3; ++r) {
        EXPECT_NEAR(got[static_cast<size_t>(r)], want[r].item<double>(), 1e-6) << "tp " << tp;
      }
    }
  }
}

TEST(Scores, BestChoice_IsTheLowestIdOfEquals) {
  for (const int tp : {1, 2, 3, 4, 8}) {
    const auto best = [](const Scores& s) { return best_choices(s, s); };
    for (const auto& got : on_shards(kWhole, tp, best)) {
      EXPECT_EQ(got[0].id, 1) << "tp " << tp;
      EXPECT_EQ(got[1].id, 1);
      EXPECT_EQ(got[2].id, 5);
      EXPECT_NEAR(got[2].log_prob, 0, 1e-9);
      EXPECT_NEAR(got[1].log_prob, 301 - std::log(std::exp(-1) + 2 + std::exp(-2)) - 301, 1e-6);
    }
  }
}

TEST(Scores, ChoicesOfADevice_HaveTheLogProbabilityOfTheirSums) {
  const Tensor chosen =
      at::tensor({3.0, 1.5, 2.5, 4.0, 7.0, -300.0, -300.0, 1.0}, at::kDouble).view({2, 4});
  const auto got = choices_of(chosen);
  ASSERT_TRUE(got);
  ASSERT_EQ(got->size(), 2U);
  EXPECT_EQ((*got)[0].id, 3);
  EXPECT_NEAR((*got)[0].log_prob, -1 - std::log(4.0), 1e-12);
  EXPECT_EQ((*got)[1].id, 7);
  EXPECT_EQ((*got)[1].log_prob, 0);
  chosen[1][0] = -1;
  EXPECT_FALSE(choices_of(chosen));
  for (const auto& [largest, sum] :
       {std::pair<double, double>{1, NAN}, {INFINITY, NAN}, {-INFINITY, 0}}) {
    const Tensor wrong = at::tensor({0.0, largest, largest, sum}, at::kDouble).view({1, 4});
    EXPECT_EQ(test::thrown_by([&] { choices_of(wrong); }).code(), Code::kNumerics);
  }
}

TEST(Scores, RowOfForbiddenTokens_IsAnError) {
  const Tensor none = at::full({1, 4}, -INFINITY);
  const Error error = test::thrown_by([&] { log_sum_exp(test::shard_of(none, Axis())); });
  EXPECT_EQ(error.code(), Code::kNumerics);
}

// The NaN is on one rank only, and another score is larger: a maximum could miss it.
TEST(Scores, NanAnywhere_IsAnErrorOnAllRanks) {
  for (const int tp : {1, 2, 3}) {
    for (const float rest : {2.F, -INFINITY}) {
      for (const int64_t place : {0, 3, 6}) {
        Tensor whole = at::full({1, 7}, rest);
        whole[0][5] = 100;
        whole[0][place] = NAN;
        const auto code = [](const Scores& s) {
          return test::thrown_by([&] { log_sum_exp(s); }).code();
        };
        for (const Code got : on_shards(whole, tp, code)) EXPECT_EQ(got, Code::kNumerics);
      }
    }
  }
}

TEST(Scores, SampledChoice_IsWhereTheCumulativeSumPasses) {
  // Probabilities 0.1, 0.2, 0.3, 0.4: the sums are 0.1, 0.3, 0.6, 1.
  const Tensor whole = at::tensor({0.1F, 0.2F, 0.3F, 0.4F}).log().view({1, 4});
  const std::vector<std::pair<double, int64_t>> cases{{0, 0},    {0.09, 0}, {0.11, 1}, {0.29, 1},
                                                      {0.31, 2}, {0.59, 2}, {0.61, 3}, {0.9999, 3}};
  for (const int tp : {1, 2, 3, 4, 5}) {
    for (const auto& [uniform, id] : cases) {
      const auto draw = [u = std::vector<double>{uniform}](const Scores& s) {
        return sampled_choices(s, s, u);
      };
      for (const auto& got : on_shards(whole, tp, draw)) {
        EXPECT_EQ(got[0].id, id) << "tp " << tp << " at " << uniform;
        EXPECT_NEAR(got[0].log_prob, std::log(0.1 * static_cast<double>(id + 1)), 1e-6);
      }
    }
  }
}

TEST(Scores, SampledChoice_IsNeverForbidden) {
  const Tensor whole = at::tensor({-INFINITY, 0.F, -INFINITY, 0.F, -INFINITY}).view({1, 5});
  for (const int tp : {1, 2, 5}) {
    for (const double uniform : {0.0, 0.4999999, 0.5, 0x1.fffffffffffffp-1}) {
      const auto draw = [u = std::vector<double>{uniform}](const Scores& s) {
        return sampled_choices(s, s, u);
      };
      const int64_t want = uniform < 0.5 ? 1 : 3;
      for (const auto& got : on_shards(whole, tp, draw)) EXPECT_EQ(got[0].id, want);
    }
  }
}

TEST(UniformNumber, ManyDraws_AreUniform) {
  constexpr size_t kDraws = 40000;
  constexpr size_t kBins = 20;
  std::vector<double> bins(kBins);
  for (uint64_t i = 0; i < kDraws; ++i) {
    const double u = uniform_number(99, i % 7, i / 7);
    ASSERT_GE(u, 0);
    ASSERT_LT(u, 1);
    ++bins[static_cast<size_t>(u * kBins)];
  }
  double chi_square = 0;
  const double want = static_cast<double>(kDraws) / kBins;
  for (const double n : bins) chi_square += (n - want) * (n - want) / want;
  EXPECT_LT(chi_square, 43.8);  // 19 degrees of freedom, one in a thousand
}

TEST(BestCandidates, Ties_KeepTheLowerPlaces) {
  BestCandidates best(3);
  for (const Candidate& c : {Candidate{1, 9}, {2, 8}, {1, 3}, {1, 5}, {0, 0}}) best.offer(c);
  const auto got = best.sorted();
  ASSERT_EQ(got.size(), 3U);
  EXPECT_EQ(got[0].place, 8);
  EXPECT_EQ(got[1].place, 3);
  EXPECT_EQ(got[2].place, 5);
}

}  // namespace
}  // namespace cleave::scores_test
