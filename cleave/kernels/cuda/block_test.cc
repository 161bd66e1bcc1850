// The fibers that stand for a GPU's threads in the tests of the kernels, and sums over a block.
#include "cleave/kernels/cuda/block.h"

#include <array>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/fiber_block.h"

namespace cleave::cuda_block_test {
namespace {

using test::FiberBlock;
using test::FiberLaunch;

/// Every thread reads what thread 7 writes.
struct ReadShared {
  bool has_barrier;
  void operator()(const FiberBlock& block, int* out) const {
    auto* shared = static_cast<int*>(block.shared());
    if (block.thread() == 7) *shared = 42;
    if (has_barrier) block.sync();
    out[block.thread()] = *shared;
  }
};

TEST(Fibers, MissingBarrier_ShowsInTheOrderOfTheThreads) {
  const Grid grid{.blocks = 1, .threads = 64, .shared_bytes = 4};
  for (const bool has_barrier : {true, false}) {
    std::array<std::vector<int>, 2> seen{std::vector<int>(64), std::vector<int>(64)};
    for (const bool is_reversed : {false, true}) {
      FiberLaunch{.is_reversed = is_reversed}(ReadShared{has_barrier}, grid,
                                              seen[is_reversed ? 1 : 0].data());
    }
    EXPECT_EQ(seen[0] == seen[1], has_barrier);
    EXPECT_EQ(seen[0] == std::vector<int>(64, 42), has_barrier);
  }
}

TEST(Fibers, BarrierThatSomeThreadsDoNotReach_IsAnError) {
  struct Divergent {
    void operator()(const FiberBlock& block) const {
      if (block.thread() < 32) block.sync();
    }
  };
  EXPECT_THROW(FiberLaunch()(Divergent(), {.blocks = 1, .threads = 64}), std::logic_error);
}

TEST(SumOverBlock, AnyNumberOfWarps_SumsAllThreadsTwiceInARow) {
  struct Sums {
    void operator()(const FiberBlock& block, int64_t* out) const {
      const int64_t once = sum_over_block(block, int64_t{block.thread()} + 1);
      const int64_t twice = sum_over_block(block, 2 * (int64_t{block.thread()} + 1));
      out[block.thread()] = twice - once;
    }
  };
  for (const int threads : {32, 64, 96, 256}) {
    for (const bool is_reversed : {false, true}) {
      std::vector<int64_t> out(static_cast<size_t>(threads));
      FiberLaunch{.is_reversed = is_reversed}(
          Sums(), {.blocks = 1, .threads = threads, .shared_bytes = kOverBlockBytes}, out.data());
      EXPECT_EQ(out, std::vector<int64_t>(out.size(), threads * (threads + 1) / 2)) << threads;
    }
  }
}

}  // namespace
}  // namespace cleave::cuda_block_test
