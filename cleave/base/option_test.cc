#include "cleave/base/option.h"

#include <gtest/gtest.h>

namespace cleave::option {
namespace {

using Pairs = std::vector<std::pair<std::string, std::string>>;

TEST(Option, TextOfEveryType_IsThatOfTheCommandLine) {
  bool on = true;
  int64_t whole = -3;
  uint64_t large = 18446744073709551615U;
  double third = 1.0 / 3;
  std::optional<int64_t> none;
  std::array<double, 2> pair{0.9, 0.95};
  std::vector<std::string> texts{"a,b", "c"};
  std::vector<std::vector<int64_t>> ids{{1, 2}, {3}};
  EXPECT_EQ(text_of(&on), "on");
  EXPECT_EQ(text_of(&whole), "-3");
  EXPECT_EQ(text_of(&large), "18446744073709551615");
  EXPECT_EQ(std::stod(text_of(&third)), third);
  EXPECT_EQ(text_of(&none), "");
  EXPECT_EQ(text_of(&pair), "0.9,0.95");
  EXPECT_EQ(text_of(&texts), "'a,b', 'c'");
  EXPECT_EQ(text_of(&ids), "1,2,3");
}

TEST(Option, Matching_HasOnlyTheMarkedOptions) {
  int steps = 7;
  std::string out = "run";
  const std::vector<Section> sections{
      {"first", {{&steps, "steps", "N", "steps", "", kSteps, kMustMatch}}},
      {"second", {{&out, "out", "DIR", "folder"}}}};
  EXPECT_EQ(matching(sections), (Pairs{{"--steps", "7"}}));
}

}  // namespace
}  // namespace cleave::option
