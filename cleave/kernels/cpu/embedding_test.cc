#include "cleave/kernels/cpu/embedding.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "tests/support/ranks.h"

namespace cleave::embedding_rows_test {
namespace {

constexpr at::ScalarType kTypes[] = {at::kFloat, at::kBFloat16, at::kHalf};

Tensor gradient_of(const Tensor& table, const Tensor& ids, int64_t padding,
                   const Tensor& upstream) {
  const Tensor leaf = test::leaf_of(table);
  embedding_rows(leaf, ids, padding).backward(upstream);
  return leaf.grad();
}

// Oracle: fp64 sums. All numbers are whole and sums below 2^24, so that fp32 sums are exact; sums
// in 16 bits would stop to grow.
TEST(EmbeddingRows, IdOfManyTokens_GetsTheSumOfTheirGradients) {
  const Tensor all_ids[] = {test::ids({3, 1000}, 40, 1), at::full({2, 2000}, 7, at::kLong),
                            at::empty({2, 0}, at::kLong)};
  for (const at::ScalarType type : kTypes) {
    for (const Tensor& ids : all_ids) {
      for (const int64_t width : {1, 70, 130}) {
        const Tensor table = test::numbers({40, width}, 2).to(type);
        const Tensor upstream = test::whole_numbers({ids.size(0), ids.size(1), width}, 3) + 3;
        for (const int64_t padding : {-1, 7}) {
          EXPECT_TRUE(at::equal(embedding_rows(table, ids, padding),
                                table.index_select(0, ids.flatten()).view(upstream.sizes())));
          const Tensor want = at::zeros({40, width}, at::kDouble)
                                  .index_add_(0, ids.flatten(), upstream.flatten(0, 1));
          if (padding >= 0) want[padding].zero_();
          EXPECT_TRUE(at::equal(gradient_of(table, ids, padding, upstream.to(type)), want.to(type)))
              << type << ' ' << ids.sizes() << ' ' << width << ' ' << padding;
        }
      }
    }
  }
}

TEST(EmbeddingRows, Gradient_DoesNotDependOnTheNumberOfThreads) {
  const Tensor ids = test::ids({3000}, 40, 1);
  for (const at::ScalarType type : kTypes) {
    const Tensor table = test::numbers({40, 300}, 2).to(type);
    const Tensor upstream = test::numbers({3000, 300}, 3).to(type);
    const auto gradient = [&](int threads) {
      const int before = at::get_num_threads();
      at::set_num_threads(threads);
      Tensor out = gradient_of(table, ids, -1, upstream);
      at::set_num_threads(before);
      return out;
    };
    const Tensor want = gradient(1);
    for (const int threads : {2, 3, 5}) EXPECT_TRUE(at::equal(gradient(threads), want)) << type;
  }
}

}  // namespace
}  // namespace cleave::embedding_rows_test
