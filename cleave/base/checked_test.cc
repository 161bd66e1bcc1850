#include "cleave/base/checked.h"

#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cleave::checked_test {
namespace {

using testing::HasSubstr;

Error caught(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  return {Code::kBug, "nothing was thrown"};
}

TEST(Checked, AtTheEdgeOf64Bits_GivesTheExactValueOrAnError) {
  EXPECT_EQ(checked_add(UINT64_MAX - 1, 1, "x"), UINT64_MAX);
  EXPECT_EQ(checked_mul(uint64_t{1} << 32, (uint64_t{1} << 32) - 1, "x"), UINT64_MAX << 32);
  EXPECT_EQ(caught([] { checked_add(UINT64_MAX, 1, "size of w"); }).code(), Code::kFormat);
  EXPECT_THAT(caught([] { checked_mul(uint64_t{1} << 32, uint64_t{1} << 32, "size of w"); }).what(),
              HasSubstr("size of w: 4294967296 * 4294967296"));
}

}  // namespace
}  // namespace cleave::checked_test
