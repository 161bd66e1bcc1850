#include "cleave/bench/timing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cleave::timing_test {
namespace {

const Spent kSpent{.kinds = {},
                   .operations = {{.name = "aten::mm", .seconds = 4, .calls = 8},
                                  {.name = "aten::add", .seconds = 2, .calls = 2},
                                  {.name = "aten::mul", .seconds = 1, .calls = 1}},
                   .products = {}};

/// The output for two runs.
std::string printed(const BenchOptions& options) {
  testing::internal::CaptureStdout();
  print_bench(options, {{"bench", "train"}, {"share", {{"other", 1.0}}}}, "a line", kSpent, 2);
  return testing::internal::GetCapturedStdout();
}

TEST(Bench, JsonWithOperations_ListsTheSlowest) {
  BenchOptions options;
  options.json = true;
  EXPECT_EQ(printed(options), "{\"bench\":\"train\",\"share\":{\"other\":1.0}}\n");
  options.operations = 2;
  EXPECT_EQ(nlohmann::json::parse(printed(options))["operations"],
            nlohmann::json({{{"name", "aten::mm"}, {"ms", 2000.0}, {"calls", 4.0}},
                            {{"name", "aten::add"}, {"ms", 1000.0}, {"calls", 1.0}}}));
}

TEST(Bench, TextWithOperations_ListsAllIfThereAreFewer) {
  BenchOptions options;
  EXPECT_EQ(printed(options), "a line\n  other            100.0 %\n");
  options.operations = 9;
  EXPECT_THAT(printed(options), testing::ContainsRegex("aten::mm +2000.000 +4.0\n"
                                                       "aten::add +1000.000 +1.0\n"
                                                       "aten::mul +500.000 +0.5\n$"));
}

}  // namespace
}  // namespace cleave::timing_test
