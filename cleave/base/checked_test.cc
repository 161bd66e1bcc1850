#include "cleave/base/checked.h"

#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cleave {
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

TEST(ExactDiv, Remainder_NamesTheNearestSizes) {
  EXPECT_EQ(exact_div(12, 4, "num_heads", "tp"), 3);
  const Error error = caught([] { exact_div(13, 4, "num_heads", "tp"); });
  EXPECT_EQ(error.code(), Code::kShape);
  EXPECT_STREQ(error.what(),
               "num_heads=13 cannot be split over tp=4; the nearest sizes that can are 12 and 16");
  EXPECT_EQ(caught([] { exact_div(13, 0, "num_heads", "tp"); }).code(), Code::kUsage);
}

}  // namespace
}  // namespace cleave
