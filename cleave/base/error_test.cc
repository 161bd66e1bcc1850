#include "cleave/base/error.h"

#include <string_view>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/thrown.h"

namespace cleave::error_test {
namespace {

// The numbers are the program's exit codes, on which scripts rely.
TEST(Code, EveryCode_HasItsNumberAndAName) {
  const std::vector<std::pair<int, std::string_view>> codes = {
      {2, "usage"},   {3, "shape"},  {4, "format"},   {5, "io"},      {6, "peer"},
      {7, "timeout"}, {8, "desync"}, {9, "numerics"}, {10, "memory"}, {70, "bug"}};
  for (const auto& [number, wanted] : codes) EXPECT_EQ(name(static_cast<Code>(number)), wanted);
  EXPECT_EQ(name(static_cast<Code>(11)), "unknown");
}

TEST(Bug, Contradiction_NamesItsPlaceInTheSource) {
  const int line = __LINE__ + 1;
  const Error error = test::thrown_by([] { CLEAVE_BUG("size=", 3); });
  EXPECT_EQ(error.code(), Code::kBug);
  EXPECT_THAT(error.what(), testing::StartsWith("size=3; this is a bug in cleave ("));
  EXPECT_THAT(error.what(), testing::EndsWith(str("error_test.cc:", line, ")")));
}

}  // namespace
}  // namespace cleave::error_test
