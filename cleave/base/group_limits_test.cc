// Oracle: files as the kernel's documentation shows them, in a folder that stands for the root.
#include "cleave/base/group_limits.h"

#include <fstream>

#include <gtest/gtest.h>

#include "tests/support/temp_folder.h"

namespace cleave {
namespace {

namespace fs = std::filesystem;

/// A root of its own, with files in it.
class GroupLimitsTest : public testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) {
    const fs::path path = root_ / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  [[nodiscard]] GroupLimits limits() const { return group_limits(root_.path()); }

 private:
  const test::TempFolder root_;
};

TEST_F(GroupLimitsTest, NoGroups_LimitNothing) {
  const GroupLimits none = limits();
  EXPECT_EQ(none.memory, std::nullopt);
  EXPECT_EQ(none.memory_peak, std::nullopt);
  EXPECT_EQ(none.num_killed, 0);
  EXPECT_EQ(none.cores, std::nullopt);
}

TEST_F(GroupLimitsTest, OfVersion2_TheLeastAroundTheProcessCounts) {
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
  const GroupLimits found = limits();
  EXPECT_EQ(found.memory, 2147483648);
  EXPECT_EQ(found.memory_peak, 2147479552);
  EXPECT_EQ(found.num_killed, 3);
  EXPECT_EQ(found.cores, 2.5);
}

TEST_F(GroupLimitsTest, OfVersion1_EachControllerHasItsTree) {
  write("proc/self/cgroup", "4:memory:/box\n3:cpuset:/\n2:cpu,cpuacct:/other\n0::/\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  write("sys/fs/cgroup/memory/box/memory.limit_in_bytes", "536870912\n");
  write("sys/fs/cgroup/memory/box/memory.max_usage_in_bytes", "536866816\n");
  write("sys/fs/cgroup/memory/box/memory.oom_control",
        "oom_kill_disable 0\nunder_oom 0\noom_kill 7\n");
  write("sys/fs/cgroup/cpu/other/cpu.cfs_quota_us", "50000\n");
  write("sys/fs/cgroup/cpu/other/cpu.cfs_period_us", "100000\n");
  const GroupLimits found = limits();
  EXPECT_EQ(found.memory, 536870912);
  EXPECT_EQ(found.memory_peak, 536866816);
  EXPECT_EQ(found.num_killed, 7);
  EXPECT_EQ(found.cores, 0.5);
}

TEST_F(GroupLimitsTest, UnlimitedGroupsOfVersion1_LimitNothing) {
  write("proc/self/cgroup", "4:memory:/\n2:cpu:/\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(limits().memory, std::nullopt);
  EXPECT_EQ(limits().cores, std::nullopt);
}

// /proc tells of the group as it is called outside of the container.
TEST_F(GroupLimitsTest, InsideOfAContainer_ItsOwnGroupIsOnTop) {
  write("proc/self/cgroup", "0::/docker/0123456789ab\n");
  write("sys/fs/cgroup/memory.max", "1073741824\n");
  write("sys/fs/cgroup/memory.events", "oom_kill 1\n");
  EXPECT_EQ(limits().memory, 1073741824);
  EXPECT_EQ(limits().memory_peak, std::nullopt);  // kernels before 5.19 do not tell
  EXPECT_EQ(limits().num_killed, 1);
}

}  // namespace
}  // namespace cleave
