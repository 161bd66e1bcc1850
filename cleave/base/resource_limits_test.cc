// Oracle for cgroups: files as the kernel's documentation shows them, in a temporary root folder.
#include "cleave/base/resource_limits.h"

#include <fstream>
#include <string>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

#include "cleave/base/error.h"
#include "tests/support/temp_folder.h"

namespace cleave::resource_limits_test {
namespace {

namespace fs = std::filesystem;

/// A temporary root folder with cgroup files.
class CgroupLimitsTest : public testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) {
    const fs::path path = root_ / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  [[nodiscard]] CgroupLimits limits() const { return cgroup_limits(root_.path()); }
  [[nodiscard]] std::optional<AvailableMemory> available() const {
    return available_memory(root_.path());
  }

 private:
  const test::TempFolder root_;
};

TEST_F(CgroupLimitsTest, NoCgroups_LimitNothing) {
  const CgroupLimits none = limits();
  EXPECT_EQ(none.memory, std::nullopt);
  EXPECT_EQ(none.memory_peak, std::nullopt);
  EXPECT_EQ(none.num_killed, 0);
  EXPECT_EQ(none.cores, std::nullopt);
}

TEST_F(CgroupLimitsTest, Version2_SmallestLimitOfTheAncestorsCounts) {
  write("proc/self/cgroup", "0::/jobs/42/step\n");
  const std::string top = "sys/fs/cgroup/jobs/";
  write(top + "42/step/memory.max", "max\n");
  write(top + "42/step/memory.events", "low 0\nhigh 0\nmax 9\noom 4\noom_kill 3\n");
  write(top + "42/step/cpu.max", "max 100000\n");
  write(top + "42/memory.max", "2147483648\n");
  write(top + "42/memory.peak", "2147479552\n");
  write(top + "42/cpu.max", "250000 100000\n");
  write(top + "memory.max", "4294967296\n");
  write(top + "memory.peak", "3000000000\n");
  write(top + "cpu.max", "800000 100000\n");
  const CgroupLimits found = limits();
  EXPECT_EQ(found.memory, 2147483648);
  EXPECT_EQ(found.memory_peak, 2147479552);
  EXPECT_EQ(found.num_killed, 3);
  EXPECT_EQ(found.cores, 2.5);
}

TEST_F(CgroupLimitsTest, Version1_EachControllerHasItsHierarchy) {
  write("proc/self/cgroup", "4:memory:/box\n3:cpuset:/\n2:cpu,cpuacct:/other\n0::/\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  write("sys/fs/cgroup/memory/box/memory.limit_in_bytes", "536870912\n");
  write("sys/fs/cgroup/memory/box/memory.max_usage_in_bytes", "536866816\n");
  write("sys/fs/cgroup/memory/box/memory.oom_control",
        "oom_kill_disable 0\nunder_oom 0\noom_kill 7\n");
  write("sys/fs/cgroup/cpu/other/cpu.cfs_quota_us", "50000\n");
  write("sys/fs/cgroup/cpu/other/cpu.cfs_period_us", "100000\n");
  const CgroupLimits found = limits();
  EXPECT_EQ(found.memory, 536870912);
  EXPECT_EQ(found.memory_peak, 536866816);
  EXPECT_EQ(found.num_killed, 7);
  EXPECT_EQ(found.cores, 0.5);
}

TEST_F(CgroupLimitsTest, UnlimitedCgroupsOfVersion1_LimitNothing) {
  write("proc/self/cgroup", "4:memory:/\n2:cpu:/\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(limits().memory, std::nullopt);
  EXPECT_EQ(limits().cores, std::nullopt);
}

// /proc names the cgroup by its path on the host.
TEST_F(CgroupLimitsTest, InsideAContainer_TheTopCgroupIsUsed) {
  write("proc/self/cgroup", "0::/docker/0123456789ab\n");
  write("sys/fs/cgroup/memory.max", "1073741824\n");
  write("sys/fs/cgroup/memory.events", "oom_kill 1\n");
  EXPECT_EQ(limits().memory, 1073741824);
  EXPECT_EQ(limits().memory_peak, std::nullopt);  // kernels before 5.19 do not report it
  EXPECT_EQ(limits().num_killed, 1);
}

constexpr char kMeminfo[] =
    "MemTotal:       24683520 kB\nMemFree:         1048576 kB\nMemAvailable:    4194304 kB\n"
    "HugePages_Total:       0\n";

TEST_F(CgroupLimitsTest, MemoryOfAMachine_IsWhatIsAvailable) {
  EXPECT_FALSE(available());
  write("proc/meminfo", kMeminfo);
  ASSERT_TRUE(available());
  EXPECT_EQ(available()->bytes, int64_t{4} << 30);
  EXPECT_FALSE(available()->is_of_cgroup);
  write("proc/self/cgroup", "0::/box\n");
  write("sys/fs/cgroup/box/memory.max", "max\n");
  write("sys/fs/cgroup/box/memory.current", "1073741824\n");
  EXPECT_EQ(available()->bytes, int64_t{4} << 30);
}

// The limit is 3000 bytes. 2400 are used, 700 of them by files and slabs that the kernel frees.
TEST_F(CgroupLimitsTest, MemoryOfVersion2_IsTheLimitWithoutWhatCannotBeReclaimed) {
  write("proc/meminfo", kMeminfo);
  write("proc/self/cgroup", "0::/jobs/step\n");
  write("sys/fs/cgroup/jobs/step/memory.max", "max\n");
  write("sys/fs/cgroup/jobs/step/memory.current", "2000\n");
  write("sys/fs/cgroup/jobs/memory.max", "3000\n");
  write("sys/fs/cgroup/jobs/memory.current", "2400\n");
  write("sys/fs/cgroup/jobs/memory.stat",
        "anon 1500\nfile 650\nshmem 50\ninactive_file 400\nactive_file 200\n"
        "slab_reclaimable 100\nslab_unreclaimable 90\n");
  ASSERT_TRUE(available());
  EXPECT_EQ(available()->bytes, 3000 - (2400 - 700));
  EXPECT_TRUE(available()->is_of_cgroup);
  write("sys/fs/cgroup/jobs/memory.current", "4000\n");  // the limit was lowered
  EXPECT_EQ(available()->bytes, 0);
}

// The numbers without total_ do not count the cgroups below.
TEST_F(CgroupLimitsTest, MemoryOfVersion1_IsTheLimitWithoutWhatCannotBeReclaimed) {
  write("proc/meminfo", kMeminfo);
  write("proc/self/cgroup", "4:memory:/box\n0::/\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  write("sys/fs/cgroup/memory/memory.usage_in_bytes", "8000\n");
  write("sys/fs/cgroup/memory/box/memory.limit_in_bytes", "5000\n");
  write("sys/fs/cgroup/memory/box/memory.usage_in_bytes", "3000\n");
  write("sys/fs/cgroup/memory/box/memory.stat",
        "cache 900\ninactive_file 1\nactive_file 1\ntotal_inactive_file 500\n"
        "total_active_file 300\n");
  ASSERT_TRUE(available());
  EXPECT_EQ(available()->bytes, 5000 - (3000 - 800));
  EXPECT_TRUE(available()->is_of_cgroup);
}

constexpr int64_t kMiB = int64_t{1} << 20;

/// Bytes that this process has mapped.
int64_t mapped_bytes() {
  int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * sysconf(_SC_PAGESIZE);
}

// In a child process, because the limit stays set.
TEST(AddressSpace, Limit_LeavesWhatIsBelowIt) {
  const pid_t child = fork();
  if (child == 0) {
    const auto most = static_cast<rlim_t>(mapped_bytes() + 100 * kMiB);
    const rlimit limit{.rlim_cur = most, .rlim_max = most};
    const bool is_set = setrlimit(RLIMIT_AS, &limit) == 0;
    const int64_t before = mapped_bytes();
    const bool holds = has_address_space(80 * kMiB) && !has_address_space(120 * kMiB);
    _exit(is_set && holds && mapped_bytes() == before ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

// In a child process, because the limit stays set.
TEST(Descriptors, SoftLimit_IsRaisedAndAHardLimitReported) {
  const pid_t child = fork();
  if (child == 0) {
    const int next = dup(0);  // about as many are open
    const auto most = static_cast<rlim_t>(next + 300);
    const rlimit limit{.rlim_cur = most - 280, .rlim_max = most};
    const bool is_set = next >= 0 && setrlimit(RLIMIT_NOFILE, &limit) == 0;
    reserve_descriptors(100, "a job");
    rlimit raised{};
    getrlimit(RLIMIT_NOFILE, &raised);
    std::string text;
    try {
      reserve_descriptors(1000, "a job");
    } catch (const Error& error) {
      text = error.what();
    }
    const std::string want = str("the hard limit is ", most, " (ulimit -Hn)");
    const bool is_named = text.rfind("a job needs ", 0) == 0 && text.find(want) != text.npos;
    _exit(is_set && raised.rlim_cur == most && is_named ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(PeakRss, FreedMemory_Counts) {
  constexpr size_t kBytes = size_t{64} << 20;
  { const std::vector<char> held(kBytes, 1); }
  EXPECT_GE(peak_rss_bytes(), static_cast<int64_t>(kBytes));
}

}  // namespace
}  // namespace cleave::resource_limits_test
