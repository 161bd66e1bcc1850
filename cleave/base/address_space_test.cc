#include "cleave/base/address_space.h"

#include <fstream>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

namespace cleave {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

/// Bytes that this process has mapped.
int64_t mapped_bytes() {
  int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * sysconf(_SC_PAGESIZE);
}

// In a child, which keeps the limit.
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

}  // namespace
}  // namespace cleave
