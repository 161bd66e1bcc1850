// Row R13: a container's memory limit, at which the kernel kills a process silently.
#include <filesystem>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/paths.h"
#include "tests/support/program.h"
#include "tests/support/train_program.h"

namespace cleave::test {
namespace {

namespace fs = std::filesystem;
using testing::ContainsRegex;

/// A control group next to this process's group, with a memory limit; the destructor removes it.
class LimitedGroup {
 public:
  explicit LimitedGroup(const std::string& bytes) {
    std::ifstream lines("/proc/self/cgroup");
    for (std::string line; path_.empty() && std::getline(lines, line);) {
      const fs::path own = fs::path(line.substr(line.rfind(':') + 1)).relative_path();
      const bool is_version1 = line.find(":memory:") != std::string::npos;
      if (!is_version1 && !line.starts_with("0::")) continue;
      const fs::path top = is_version1 ? "/sys/fs/cgroup/memory" : "/sys/fs/cgroup";
      const fs::path around = is_version1 ? top / own : (top / own).parent_path();
      try_at(around / ("cleave-test-" + std::to_string(getpid())),
             is_version1 ? "memory.limit_in_bytes" : "memory.max", bytes);
    }
  }
  ~LimitedGroup() {
    std::error_code ignored;  // later tests use other groups
    if (!path_.empty()) fs::remove(path_, ignored);
  }
  LimitedGroup(const LimitedGroup&) = delete;
  LimitedGroup& operator=(const LimitedGroup&) = delete;

  /// Empty if this user may not make a group.
  [[nodiscard]] const fs::path& path() const { return path_; }

 private:
  void try_at(const fs::path& path, const char* limit, const std::string& bytes) {
    std::error_code code;
    if (!fs::create_directory(path, code)) return;
    for (const char* of_swap : {"memory.memsw.limit_in_bytes", "memory.swap.max"}) {
      if (fs::exists(path / of_swap)) std::ofstream(path / of_swap) << "0";
    }
    if (fs::exists(path / limit) && (std::ofstream(path / limit) << bytes).flush()) {
      path_ = path;
    } else {
      fs::remove(path, code);
    }
  }
  fs::path path_;
};

/// The words as a shell command of a process in the group.
std::vector<std::string> in_group(const LimitedGroup& group,
                                  const std::vector<std::string>& words) {
  const std::string join = "echo $$ > " + (group.path() / "cgroup.procs").string() + " && ";
  std::vector<std::string> all{"/bin/bash", "-c", join + "exec \"$0\" \"$@\"", test::program()};
  all.insert(all.end(), words.begin(), words.end());
  return all;
}

// 50 million weights with gradients and moments take 0.8 GB, which the machine has; libtorch
// itself takes less than half of the limit.
TEST(MemoryGroup, RunAboveTheLimit_IsRefusedInsteadOfKilled) {
  const LimitedGroup group("734003200");
  if (group.path().empty()) GTEST_SKIP() << "needs the right to make a control group with a limit";
  const TempFolder folder;
  std::string config = kTinyLlama;
  config.replace(config.find("\"intermediate_size\":20"), 22, "\"intermediate_size\":350000");
  std::ofstream(folder / "wide.json") << config;
  const RunResult ran = run_program(
      in_group(group, train(folder / "run", {"--model", folder / "wide.json", "--steps", "1"})));
  EXPECT_EQ(ran.exit_code, 10) << ran.err;
  EXPECT_THAT(ran.err,
              ContainsRegex("^cleave: the run needs about [0-9.]+ [MG]iB of memory, and "
                            "the limit of the container or batch job leaves [0-9]+ MiB; "));
  EXPECT_FALSE(fs::exists(folder / "run"));
}

TEST(MemoryGroup, RankThatTheKernelKillsAtTheLimit_IsReportedWithTheLimit) {
  const LimitedGroup group("268435456");
  if (group.path().empty()) GTEST_SKIP() << "needs the right to make a control group with a limit";
  // tail waits for the end of an infinite line.
  const std::string rank = "if [ $RANK = 1 ]; then exec tail /dev/zero; fi; exec sleep 200";
  const RunResult ran =
      run_program(in_group(group, {"launch", "-n", "2", "--", "/bin/bash", "-c", rank}));
  EXPECT_EQ(ran.exit_code, 137);
  EXPECT_THAT(ran.err,
              ContainsRegex("rank 1 \\(pid [0-9]+\\) was killed by signal 9 for lack of "
                            "memory \\(limit 256 MiB(, peak 256 MiB)?\\) before it joined\n"));
}

// Any other SIGKILL is reported without the memory limit.
TEST(MemoryGroup, RankKilledWithinTheLimit_IsNotReportedAsOutOfMemory) {
  const RunResult ran = run_cleave({"launch", "-n", "2", "--", "/bin/bash", "-c",
                                    "if [ $RANK = 1 ]; then kill -9 $$; fi; exec sleep 200"});
  EXPECT_EQ(ran.exit_code, 137);
  EXPECT_THAT(ran.err,
              ContainsRegex("rank 1 \\(pid [0-9]+\\) was killed by signal 9 before it joined\n"));
}

}  // namespace
}  // namespace cleave::test
