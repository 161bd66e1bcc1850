#include "cleave/comm/launch/failure.h"

#include <cstdlib>
#include <new>
#include <sys/resource.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "tests/support/level.h"

namespace cleave {
namespace {

using testing::ExitedWithCode;

/// Takes all memory that this process can get from now on, down to the smallest blocks.
void use_up_memory() {
  const rlimit none{0, 0};
  setrlimit(RLIMIT_AS, &none);
  for (size_t size = size_t{1} << 30; size > 0; size /= 2) {
    while (void* const block = std::malloc(size)) *static_cast<volatile char*>(block) = 1;
  }
}

TEST(Failure, WithoutMemoryForTheMessage_IsReported) {
  if (test::kIsInstrumented) GTEST_SKIP() << "sanitizers' allocators end the process themselves";
  EXPECT_EXIT(
      {
        use_up_memory();
        try {
          throw std::bad_alloc();
        } catch (...) {
          _exit(report_failure());
        }
      },
      ExitedWithCode(10), "^cleave: out of memory; choose a smaller batch");
}

}  // namespace
}  // namespace cleave
