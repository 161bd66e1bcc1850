#include "cleave/comm/cores.h"

#include <algorithm>
#include <thread>

#include <gtest/gtest.h>

#include "cleave/base/error.h"

namespace cleave {
namespace {

/// Runs in a thread of its own, whose processors may be changed.
void apart(const std::function<void()>& body) {
  std::thread(body).join();
}

TEST(Cores, SharesOfAllRanks_AreDisjointAndEqual) {
  const std::vector<int> all = usable_processors();
  ASSERT_FALSE(all.empty());
  for (int num_ranks = 1; num_ranks <= static_cast<int>(all.size()); ++num_ranks) {
    std::vector<int> taken;
    for (int rank = 0; rank < num_ranks; ++rank) {
      apart([&] {
        EXPECT_TRUE(keep_to_own_processors(rank, num_ranks, 1));
        const std::vector<int> own = usable_processors();
        EXPECT_EQ(own.size(), all.size() / static_cast<size_t>(num_ranks));
        taken.insert(taken.end(), own.begin(), own.end());
      });
    }
    std::sort(taken.begin(), taken.end());
    EXPECT_EQ(std::adjacent_find(taken.begin(), taken.end()), taken.end()) << num_ranks;
  }
}

TEST(Cores, MoreThreadsThanProcessors_ChangesNothing) {
  apart([] {
    const std::vector<int> all = usable_processors();
    const int num_ranks = static_cast<int>(all.size());
    EXPECT_FALSE(keep_to_own_processors(0, num_ranks, 2));
    EXPECT_FALSE(keep_to_own_processors(num_ranks, num_ranks + 1, 1));
    EXPECT_EQ(usable_processors(), all);
  });
}

TEST(Cores, OneProcessor_IsKeptByThreadsStartedLater) {
  apart([] {
    const int last = usable_processors().back();
    keep_to_processor(last);
    apart([&] { EXPECT_EQ(usable_processors(), std::vector{last}); });
    EXPECT_TRUE(keep_to_own_processors(0, 1, 1));
    EXPECT_FALSE(keep_to_own_processors(0, 2, 1));  // as bound by a launcher
  });
}

TEST(Cores, ProcessorThatIsNotThere_IsRefused) {
  try {
    keep_to_processor(1023);
    GTEST_SKIP() << "this machine has processor 1023";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kUsage);
  }
}

}  // namespace
}  // namespace cleave
