#include "cleave/mesh/consistency.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/ranks.h"
#include "tests/support/thrown.h"

namespace cleave::consistency_test {
namespace {

using test::on_ranks;
using test::thrown_by;

const ConfigFingerprint kConfig{{"--lr", "0.1"}, {"--plan", ""}, {"--steps", "5"}};

/// The error on all ranks when rank `other` of three has `config` and the others kConfig.
std::string difference(int other, const ConfigFingerprint& config) {
  const Error error = thrown_by([&] {
    on_ranks(3, [&](const Axis& axis) {
      check_consistent(axis.rank() == other ? config : kConfig, axis);
    });
  });
  EXPECT_EQ(error.code(), Code::kShape);
  const std::string text = error.what();
  const std::string end = "; start all ranks of a job with the same options on the same files";
  EXPECT_TRUE(text.ends_with(end)) << text;
  return text.substr(0, text.size() - end.size());
}

TEST(CheckConsistent, EqualConfigs_Pass) {
  for (const int ranks : {1, 2, 3}) {
    on_ranks(ranks, [](const Axis& axis) { check_consistent(kConfig, axis); });
    on_ranks(ranks, [](const Axis& axis) { check_consistent({}, axis); });
  }
}

TEST(CheckConsistent, FirstDifference_IsReportedWithBothValues) {
  EXPECT_EQ(difference(2, {{"--lr", "0.2"}, {"--plan", ""}, {"--steps", "6"}}),
            "rank 2 has --lr 0.2, rank 0 0.1");
  EXPECT_EQ(difference(1, {{"--lr", "0.1"}, {"--plan", ""}, {"--steps", "6"}}),
            "rank 1 has --steps 6, rank 0 5");
  // A longer value on either side, and names that the other side lacks.
  EXPECT_EQ(difference(1, {{"--lr", "0.1"}, {"--plan", "x"}, {"--steps", "5"}}),
            "rank 1 has --plan x, rank 0 ");
  EXPECT_EQ(difference(0, {{"--lr", "0.1"}, {"--plan", ""}, {"--steps", "5"}, {"--clip", "1"}}),
            "rank 1 has --clip none, rank 0 1");
  EXPECT_EQ(difference(2, {}), "rank 2 has --lr none, rank 0 0.1");
  // A value may hold any bytes.
  EXPECT_EQ(difference(0, {{"--lr", "\n\"0.1\"\n"}, {"--plan", ""}, {"--steps", "5"}}),
            "rank 1 has --lr 0.1, rank 0 \n\"0.1\"\n");
  EXPECT_THAT(difference(2, {{"--lr", "\xff"}, {"--plan", ""}, {"--steps", "5"}}),
              testing::MatchesRegex("rank 2 has --lr checksum [0-9a-f]+, rank 0 0.1"));
}

}  // namespace
}  // namespace cleave::consistency_test
