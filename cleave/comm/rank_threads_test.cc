#include <atomic>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/comm/world.h"
#include "tests/support/thrown.h"

namespace cleave {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// The timeout is what a user must hear of, also when its log finds no place.
TEST(RankThreads, TimeoutWhoseLogCannotBeWritten_IsStillATimeout) {
  std::atomic<bool> is_over = false;
  const auto body = [&](World& world) {
    const auto group = world.group({0, 1}, "all");
    if (world.rank() == 1) return is_over.wait(false);  // it never comes
    try {
      group->barrier({.site = "s", .shape = {}});
    } catch (...) {
      is_over = true;
      is_over.notify_all();
      throw;
    }
  };
  const Error error = test::thrown_by(
      [&] { run_ranks(2, body, {.timeout_s = 0.1, .flight_log_folder = "/no/such/folder"}); });
  EXPECT_EQ(error.code(), Code::kTimeout);
  EXPECT_THAT(error.what(),
              AllOf(HasSubstr("timeout of 0.1 s"), HasSubstr("; /no/such/folder/flight_log.")));
}

TEST(RankThreads, GroupsMadeInAnotherOrder_AreNamed) {
  const Error error = test::thrown_by([] {
    run_ranks(2, [](World& world) {
      const auto group = world.group({0, 1}, world.rank() == 0 ? "tp" : "dp");
      group->barrier({.site = "s", .shape = {}});
    });
  });
  EXPECT_EQ(error.code(), Code::kDesync);
  EXPECT_THAT(error.what(), AllOf(HasSubstr("group 0 of ranks "), HasSubstr("tp on "),
                                  HasSubstr("dp on "), HasSubstr("in the same order")));
}

TEST(RankThreads, NoTime_IsRefused) {
  for (const double seconds : {0.0, -1.0}) {
    const Error error = test::thrown_by(
        [&] { run_ranks(2, [](World&) {}, {.timeout_s = seconds, .flight_log_folder = ""}); });
    EXPECT_EQ(error.code(), Code::kUsage);
  }
}

}  // namespace
}  // namespace cleave
