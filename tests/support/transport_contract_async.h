#pragma once
// Part of transport_contract.h: asynchronous calls.
#include <gmock/gmock.h>

#include "cleave/comm/api/async_group.h"
#include "tests/support/level.h"
#include "tests/support/transport_contract.h"

namespace cleave::inline comm {
namespace contract {

/// A started all-reduce of `count` numbers. The call keeps their memory alive.
struct StartedSum {
  std::shared_ptr<Group> group;
  std::shared_ptr<Values> data;
  std::shared_future<void> done;

  void get() const { group->async()->await(done); }
};

inline StartedSum start_sum(const std::shared_ptr<Group>& group, int rank, int64_t count,
                            const char* site) {
  auto data =
      std::make_shared<Values>(DType::kF32, count, [&](int64_t i) { return number(rank, i); });
  AsyncGroup& async = *group->async();
  return {.group = group, .data = data, .done = async.start([group, data, count, site] {
            group->all_reduce(data->data(), data->data(), count, DType::kF32, ReduceOp::kSum,
                              call(site));
          })};
}

inline Values sum_of(int num_ranks, int64_t count) {
  return {DType::kF32, count, [&](int64_t i) {
            return static_cast<double>(num_ranks * (num_ranks + 1) / 2) *
                   static_cast<double>(i % 7 - 3);
          }};
}

}  // namespace contract

TEST_P(TransportContract, StartedCalls_GiveTheirSumsWhileTheRankCallsAnotherGroup) {
  run(3, [](World& world) {
    const auto async = contract::all(world), own = contract::all(world);
    for (int round = 0; round < 3; ++round) {
      std::vector<contract::StartedSum> started;
      for (const int64_t count : {5, 80000, 1}) {
        started.push_back(contract::start_sum(async, world.rank(), count, "async"));
      }
      for (const int64_t count : {7, 50000}) {
        Values data(DType::kF32, count,
                    [&](int64_t i) { return contract::number(world.rank(), i); });
        own->all_reduce(data.data(), data.data(), count, DType::kF32, ReduceOp::kSum,
                        contract::call("own"));
        EXPECT_TRUE(data == contract::sum_of(3, count));
      }
      for (const auto& sum : started) sum.get();
      EXPECT_TRUE(*started[0].data == contract::sum_of(3, 5));
      EXPECT_TRUE(*started[1].data == contract::sum_of(3, 80000));
      EXPECT_TRUE(*started[2].data == contract::sum_of(3, 1));
    }
  });
}

TEST_P(TransportContract, CallAfterStartedOnes_ComesAfterThemOnEveryRank) {
  run(2, [](World& world) {
    const auto group = contract::all(world);
    for (int round = 0; round < 20; ++round) {
      const auto sum = contract::start_sum(group, world.rank(), 1000, "first");
      group->async()->await_started();
      group->barrier(contract::call("second"));
      EXPECT_TRUE(*sum.data == contract::sum_of(2, 1000));
    }
  });
}

TEST_P(TransportContract, RankThatFailsWithACallUnderWay_EndsAllWithItsError) {
  const auto begin = std::chrono::steady_clock::now();
  const auto cause = run_to_failure(3, [](World& world) {
    const auto group = contract::all(world);
    group->barrier(contract::call("start"));
    if (world.rank() == 2) throw Error(Code::kNumerics, "the loss is nan");
    const auto sum = contract::start_sum(group, world.rank(), 80000, "gradients");
    // Rank 1 leaves while its call is running; rank 0 gets the error from its call's future.
    if (world.rank() == 1) throw Error(Code::kNumerics, "the loss is nan");
    const std::string text = contract::expect_error(Code::kPeer, [&] { sum.get(); });
    EXPECT_THAT(text, testing::HasSubstr("the loss is nan"));
    throw Error(Code::kPeer, text);
  });
  ASSERT_TRUE(cause.has_value());
  EXPECT_EQ(cause->code(), Code::kNumerics) << cause->what();
  EXPECT_LT(test::milliseconds_since(begin), 5000);
}

TEST_P(TransportContract, StartedCallsThatDiffer_AreADesyncOnTheRanksOwnThreads) {
  const auto cause = run_to_failure(2, [](World& world) {
    const auto group = contract::all(world);
    const auto sum =
        contract::start_sum(group, world.rank(), 16, world.rank() == 0 ? "layer 3" : "layer 4");
    const std::string text = contract::expect_error(Code::kDesync, [&] { sum.get(); });
    EXPECT_THAT(text, testing::AllOf(testing::HasSubstr("layer 3"), testing::HasSubstr("layer 4")));
    throw Error(Code::kDesync, text);
  });
  ASSERT_TRUE(cause.has_value());
  EXPECT_EQ(cause->code(), Code::kDesync) << cause->what();
}

TEST_P(TransportContract, StartedCallThatARankNeverMakes_TimesOutWithItsName) {
  const auto cause = run_to_failure(
      2,
      [](World& world) {
        const auto group = contract::all(world), other = contract::all(world);
        if (world.rank() == 0) {
          const auto sum = contract::start_sum(group, 0, 16, "gradients");
          sum.get();
        }
        other->barrier(contract::call("end"));
      },
      0.5);
  ASSERT_TRUE(cause.has_value());
  EXPECT_EQ(cause->code(), Code::kTimeout) << cause->what();
  EXPECT_THAT(cause->what(), testing::HasSubstr("rank"));
}

}  // namespace cleave::inline comm
