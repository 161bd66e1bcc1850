#include "cleave/layout/exchange.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/support/ranks.h"
#include "tests/support/thrown.h"

// Oracle: closed forms. Row i of rank r is (100 r + i, -100 r - i).
namespace cleave::exchange_test {
namespace {

/// Rows that rank `from` sends to rank `to`. Rank 1 sends none, and nobody sends rows to itself but
/// rank 0.
constexpr int64_t kCounts[3][3] = {{2, 0, 1}, {0, 0, 0}, {1, 3, 0}};

RowCounts counts_of(size_t rank, size_t num_ranks) {
  RowCounts counts;
  for (size_t other = 0; other < num_ranks; ++other) {
    counts.sent.push_back(kCounts[rank][other]);
    counts.received.push_back(kCounts[other][rank]);
  }
  return counts;
}

Tensor rows_of(double first, int64_t count) {
  const Tensor column = first + at::arange(count, at::kDouble);
  return at::stack({column, -column}, 1);
}

TEST(ExchangeRows, UnevenCounts_MoveRowsThereAndGradientsBack) {
  test::on_ranks(3, [](const Axis& axis) {
    const auto rank = static_cast<size_t>(axis.rank());
    const RowCounts counts = counts_of(rank, 3);
    int64_t num_sent = 0;
    for (const int64_t n : counts.sent) num_sent += n;
    const Tensor rows = test::leaf_of(rows_of(100.0 * axis.rank(), num_sent));
    const Tensor got = exchange_rows(rows, counts, axis, "test");
    std::vector<Tensor> want;
    for (size_t from = 0; from < 3; ++from) {
      int64_t first = 0;
      for (size_t to = 0; to < rank; ++to) first += kCounts[from][to];
      want.push_back(rows_of(100.0 * static_cast<double>(from) + static_cast<double>(first),
                             kCounts[from][rank]));
    }
    EXPECT_TRUE(at::equal(got.detach(), at::cat(want)));
    EXPECT_TRUE(got.requires_grad());
    (got * (axis.rank() + 1)).sum().backward();
    std::vector<Tensor> gradients;
    for (size_t to = 0; to < 3; ++to) {
      gradients.push_back(
          at::full({kCounts[rank][to], 2}, static_cast<double>(to + 1), at::kDouble));
    }
    EXPECT_TRUE(at::equal(rows.grad(), at::cat(gradients)));
  });
}

TEST(ExchangeRows, In16Bits_MovesTheBits) {
  test::on_ranks(2, [](const Axis& axis) {
    const RowCounts counts{.sent = {1, 1}, .received = {1, 1}};
    const Tensor rows = rows_of(100.0 * axis.rank(), 2).to(at::kBFloat16);
    const Tensor got = exchange_rows(rows, counts, axis, "test");
    EXPECT_EQ(got.scalar_type(), at::kBFloat16);
    EXPECT_EQ(got[1][0].item<double>(), 100.0 + axis.rank());
  });
}

TEST(ExchangeRows, CountsThatDoNotFit_AreADesync) {
  EXPECT_EQ(test::thrown_by([] {
              test::on_ranks(2, [](const Axis& axis) {
                const RowCounts counts{.sent = {1, 1}, .received = {1, axis.rank() == 0 ? 2 : 1}};
                (void)exchange_rows(rows_of(0, 2), counts, axis, "test");
              });
            }).code(),
            Code::kDesync);
}

TEST(ExchangeRows, OnOneRank_ChangesNothing) {
  const Tensor rows = rows_of(0, 3);
  EXPECT_TRUE(exchange_rows(rows, {.sent = {3}, .received = {3}}, Axis(), "test").is_same(rows));
}

}  // namespace
}  // namespace cleave::exchange_test
