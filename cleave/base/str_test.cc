#include "cleave/base/str.h"

#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace cleave {
namespace {

TEST(Str, Lists_AreJoinedByCommas) {
  EXPECT_EQ(comma_list(std::vector<int>{}), "");
  EXPECT_EQ(comma_list(std::vector<std::string>{"", "b", ""}), ", b, ");
  EXPECT_EQ(bracket_list(std::vector<int64_t>{2, -1, 3}), "[2, -1, 3]");
  EXPECT_EQ(bracket_list(std::vector<int64_t>{}), "[]");
}

}  // namespace
}  // namespace cleave
