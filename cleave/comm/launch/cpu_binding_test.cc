#include "cleave/runtime/cpu_binding.h"

#include <algorithm>
#include <cerrno>
#include <functional>
#include <mutex>
#include <thread>

#include <gtest/gtest.h>

#include "cleave/base/error.h"
#include "tests/support/process_roles.h"

namespace cleave::cpu_binding_test {
namespace {

/// Runs `body` in a separate thread, whose affinity may be changed.
void in_thread(const std::function<void()>& body) {
  std::thread(body).join();
}

/// Binds the calling process, as a launcher does before it starts a rank.
void bind_to(const std::vector<int>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) CPU_SET(static_cast<size_t>(cpu), &set);
  ASSERT_EQ(sched_setaffinity(0, sizeof(set), &set), 0);
}

TEST(UsableCpus, MoreThanOneSetHolds_AreAllFound) {
  constexpr size_t kNeeded = 512;  // bytes for 4096 CPUs
  const auto large_system = [](size_t num_bytes, cpu_set_t* set) {
    errno = EINVAL;
    if (num_bytes < kNeeded) return -1;
    CPU_ZERO_S(num_bytes, set);
    for (const size_t cpu : {1U, 1024U, 4095U}) CPU_SET_S(cpu, num_bytes, set);
    return 0;
  };
  std::vector<int> cpus = usable_cpus(large_system);
  std::sort(cpus.begin(), cpus.end());
  EXPECT_EQ(cpus, (std::vector{1, 1024, 4095}));
}

TEST(UsableCpus, FailedSystemCall_IsAnError) {
  for (const int reason : {EPERM, EINVAL}) {
    const auto refuses = [reason](size_t, cpu_set_t*) {
      errno = reason;
      return -1;
    };
    try {
      usable_cpus(refuses);
      FAIL() << reason;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kIo);
    }
  }
}

TEST(CpuBinding, RanksThatMayRunOnTheSame_HaveDisjointEqualShares) {
  const std::vector<int> all = usable_cpus();
  ASSERT_FALSE(all.empty());
  for (int num_ranks = 1; num_ranks <= static_cast<int>(all.size()); ++num_ranks) {
    std::mutex mutex;
    std::vector<int> taken;
    run_ranks(num_ranks, [&](World& world) {
      const CpuBinding binding(world, 0);
      const std::vector<int> own = usable_cpus();
      EXPECT_EQ(own.size(), all.size() / static_cast<size_t>(num_ranks));
      EXPECT_EQ(binding.num_threads(), static_cast<int>(own.size()));
      const std::lock_guard lock(mutex);
      taken.insert(taken.end(), own.begin(), own.end());
    });
    std::sort(taken.begin(), taken.end());
    EXPECT_EQ(std::adjacent_find(taken.begin(), taken.end()), taken.end()) << num_ranks;
  }
}

TEST(CpuBinding, MoreThreadsThanCpus_ChangesNothing) {
  const std::vector<int> all = usable_cpus();
  const auto num_cpus = static_cast<int>(all.size());
  run_ranks(num_cpus, [&](World& world) {
    EXPECT_EQ(CpuBinding(world, 2).num_threads(), 2);
    const CpuBinding binding(world, 2);
    EXPECT_EQ(usable_cpus(), all);
  });
  run_ranks(num_cpus + 1, [&](World& world) {
    const CpuBinding binding(world, 0);
    EXPECT_EQ(binding.num_threads(), 1);
    EXPECT_EQ(usable_cpus(), all);
  });
}

TEST(CpuBinding, End_LetsTheThreadRunWhereItDid) {
  const std::vector<int> all = usable_cpus();
  if (all.size() < 2) GTEST_SKIP() << "needs two CPUs";
  run_ranks(2, [&](World& world) {
    {
      const CpuBinding binding(world, 1);
      EXPECT_LT(usable_cpus().size(), all.size());
    }
    EXPECT_EQ(usable_cpus(), all);
  });
}

TEST(CpuBinding, RankThatItsLauncherBound_HasAllThatItWasGiven) {
  const std::vector<int> all = usable_cpus();
  if (all.size() < 2) GTEST_SKIP() << "needs two CPUs";
  const std::vector<int> two{all[0], all[1]}, one{all[1]};
  const auto run = [](int rank_count, const std::function<void(World&)>& body) {
    run_processes(rank_count, body, {.timeout_s = 20, .flight_log_folder = ""});
  };
  run(2, [&](World& world) {
    const std::vector<int>& given = world.rank() == 0 ? two : one;
    bind_to(given);
    const CpuBinding binding(world, 0);
    EXPECT_EQ(usable_cpus(), given);
    EXPECT_EQ(binding.num_threads(), static_cast<int>(given.size()));
  });
  run(3, [&](World& world) {  // ranks 0 and 2 share
    bind_to(world.rank() == 1 ? one : two);
    const CpuBinding binding(world, 0);
    EXPECT_EQ(usable_cpus(), std::vector{all[world.rank() == 0 ? 0 : 1]});
    EXPECT_EQ(binding.num_threads(), 1);
  });
}

TEST(ThreadsEach, QuotaOfTheControlGroup_IsSharedAsCpusAre) {
  EXPECT_EQ(threads_each(64, 4, std::nullopt), 16);
  EXPECT_EQ(threads_each(64, 4, 10.0), 2);
  EXPECT_EQ(threads_each(2, 1, 10.0), 2);
  EXPECT_EQ(threads_each(2, 8, std::nullopt), 1);
  EXPECT_EQ(threads_each(2, 1, 0.5), 1);
}

TEST(BindToCpu, Binding_IsInheritedByLaterThreads) {
  in_thread([] {
    const int last = usable_cpus().back();
    bind_to_cpu(last);
    in_thread([&] { EXPECT_EQ(usable_cpus(), std::vector{last}); });
  });
}

TEST(BindToCpu, MissingCpu_IsRefused) {
  try {
    bind_to_cpu(1023);
    GTEST_SKIP() << "this machine has CPU 1023";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kUsage);
  }
}

}  // namespace
}  // namespace cleave::cpu_binding_test
