#include "cleave/base/str.h"

#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace cleave::str_test {
namespace {

TEST(Str, Lists_AreJoinedByCommas) {
  EXPECT_EQ(list_text(std::vector<int>{}), "");
  EXPECT_EQ(list_text(std::vector<std::string>{"", "b", ""}), ", b, ");
  EXPECT_EQ(shape_text(std::vector<int64_t>{2, -1, 3}), "[2, -1, 3]");
  EXPECT_EQ(shape_text(std::vector<int64_t>{}), "[]");
}

}  // namespace
}  // namespace cleave::str_test
