#include "cleave/runtime/plain_kernels.h"

#include <gtest/gtest.h>

namespace cleave::plain_kernels_test {
namespace {

TEST(PlainKernels, KernelsThatWereOn_AreOnAgainAtTheEnd) {
  set_plain_kernels("norm");
  {
    const PlainKernels plain;
    EXPECT_FALSE(is_on(Kernel::kAttention));
    EXPECT_FALSE(is_on(Kernel::kNorm));
  }
  EXPECT_TRUE(is_on(Kernel::kAttention));
  EXPECT_FALSE(is_on(Kernel::kNorm));
  set_plain_kernels("");
}

}  // namespace
}  // namespace cleave::plain_kernels_test
