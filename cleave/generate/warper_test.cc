#include <algorithm>
#include <cmath>
#include <numeric>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/base/philox.h"
#include "cleave/generate/processors.h"
#include "tests/support/ranks.h"
#include "tests/support/shard_scores.h"

namespace cleave::warper_test {
namespace {

Tensor random_scores(int64_t rows, int64_t vocab_size, double spread) {
  std::vector<double> values(static_cast<size_t>(rows * vocab_size));
  fill_normal(stream_key(7, "warper test"), 0, values);
  return (at::tensor(values, at::kDouble) * spread).to(at::kFloat).view({rows, vocab_size});
}

/// The result of warp() on `tp` ranks, joined.
Tensor warped(const Tensor& whole, int tp, const GenerateSettings& settings, int64_t least_kept) {
  Tensor out = at::empty_like(whole);
  test::on_ranks(tp, [&](const Axis& axis) {
    const Scores scores = test::shard_of(whole, axis);
    warp(scores, settings, least_kept);
    out.narrow(1, scores.held.begin, scores.held.size()).copy_(scores.values);
  });
  return out;
}

/// The definition of warp(), on a whole row of sorted probabilities.
std::vector<bool> kept_by_definition(const Tensor& row, const GenerateSettings& s, int64_t least) {
  const Tensor scaled = row.to(at::kDouble) / s.temperature;
  const auto n = static_cast<size_t>(row.numel());
  std::vector<size_t> order(n);
  std::iota(order.begin(), order.end(), size_t{0});
  const double* v = scaled.const_data_ptr<double>();
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return v[a] > v[b]; });
  size_t count = n;
  if (s.top_k > 0) count = std::min(n, static_cast<size_t>(std::max(s.top_k, least)));
  while (count < n && v[order[count]] == v[order[count - 1]]) ++count;
  double total = 0;
  for (size_t i = 0; i < count; ++i) total += std::exp(v[order[i]]);
  std::vector<bool> kept(n, false);
  double before = 0;
  for (size_t i = 0; i < count; ++i) {
    const bool is_needed = s.top_p >= 1 || before < s.top_p * total;
    kept[order[i]] = is_needed || i < static_cast<size_t>(least);
    before += std::exp(v[order[i]]);
  }
  return kept;
}

void expect_definition(const Tensor& whole, const GenerateSettings& settings, int64_t least = 1) {
  for (const int tp : {1, 2, 3, 4}) {
    const Tensor got = warped(whole, tp, settings, least);
    for (int64_t r = 0; r < whole.size(0); ++r) {
      const auto kept = kept_by_definition(whole[r], settings, least);
      for (size_t i = 0; i < kept.size(); ++i) {
        const auto id = static_cast<int64_t>(i);
        const float want = whole[r][id].item<float>() / static_cast<float>(settings.temperature);
        const float value = got[r][id].item<float>();
        if (kept[i]) {
          EXPECT_EQ(value, want) << "tp " << tp << " row " << r << " id " << i;
        } else {
          EXPECT_EQ(value, -INFINITY) << "tp " << tp << " row " << r << " id " << i;
        }
      }
    }
  }
}

TEST(Warper, TopK_KeepsTheBestOverAllShards) {
  expect_definition(random_scores(3, 101, 2), {.temperature = 0.7, .top_k = 9});
}

TEST(Warper, TopKWithEqualScores_KeepsAllThatEqualTheLast) {
  const Tensor scores = at::tensor({1.F, 3.F, 2.F, 2.F, 0.F, 2.F, 2.F}).view({1, 7});
  expect_definition(scores, {.top_k = 3});
}

TEST(Warper, TopP_KeepsTheSmallestSetThatReachesIt) {
  expect_definition(random_scores(4, 301, 3), {.top_k = 0, .top_p = 0.8});
}

TEST(Warper, FlatTopP_NeedsSeveralRoundsAndIsExact) {
  expect_definition(random_scores(2, 1500, 0.3), {.top_k = 0, .top_p = 0.9});
}

TEST(Warper, TopPOfEqualScores_KeepsTheLowestIds) {
  expect_definition(at::zeros({1, 40}), {.top_k = 0, .top_p = 0.51});
}

TEST(Warper, TopKThenTopP_CountsOnlyTheMassOfTheTopK) {
  expect_definition(random_scores(3, 200, 2), {.temperature = 1.3, .top_k = 20, .top_p = 0.6});
}

TEST(Warper, LeastKept_StayWhateverTheMass) {
  expect_definition(random_scores(3, 64, 4), {.top_k = 1, .top_p = 0.01}, 3);
}

TEST(Warper, FewerIdsThanRanks_EmptyShardsTakePart) {
  expect_definition(random_scores(2, 3, 1), {.top_k = 2, .top_p = 0.7});
}

}  // namespace
}  // namespace cleave::warper_test
