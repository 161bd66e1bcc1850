#pragma once
// Part of transport_contract.h: ranks that disagree, fail or do not arrive.
#include <stdexcept>
#include <thread>

#include <gmock/gmock.h>

#include "tests/support/level.h"
#include "tests/support/transport_contract.h"

namespace cleave::inline comm {
namespace contract {

/// One collective as rank 0 calls it and as all other ranks call it.
struct Disagreement {
  std::string what;
  std::function<void(Group&, Values&)> first, others;
};

inline std::vector<Disagreement> disagreements(int64_t n) {
  static const std::vector<int64_t> shape_a{2, 8}, shape_b{4, 4};
  const auto reduce = [n](DType dtype, int64_t less, ReduceOp op, std::span<const int64_t> shape) {
    return [=](Group& group, Values& v) {
      group.all_reduce(v.data(), v.data(), n - less, dtype, op, {.site = "sum", .shape = shape});
    };
  };
  const auto plain = reduce(DType::kF32, 0, ReduceOp::kSum, {});
  const auto gather = [n](int64_t rows, DType dtype) {
    return [=](Group& group, Values& v) {
      const std::vector<int64_t> widths(static_cast<size_t>(group.size()), n / 8);
      group.all_gather(v.data(), v.data(), rows, widths, dtype, call("gather"));
    };
  };
  const auto scatter = [](int64_t width) {
    return [=](Group& group, Values& v) {
      const std::vector<int64_t> widths(static_cast<size_t>(group.size()), width / 8);
      group.reduce_scatter(v.data(), v.data(), 1, widths, DType::kF32, call("scatter"));
    };
  };
  const auto broadcast = [n](int root, DType dtype) {
    return
        [=](Group& group, Values& v) { group.broadcast(v.data(), n, dtype, root, call("root")); };
  };
  const auto all_to_all = [n](int64_t less_sent, int64_t less_expected) {
    return [=](Group& group, Values& v) {
      const auto size = static_cast<size_t>(group.size());
      const std::vector<int64_t> send(size, n / 8 - less_sent), recv(size, n / 8 - less_expected);
      group.all_to_all(v.data(), send, v.data(), recv, DType::kF32, call("a2a"));
    };
  };
  const auto barrier = [](std::string_view site) {
    return [=](Group& group, Values&) { group.barrier(call(site)); };
  };
  return {{"count", plain, reduce(DType::kF32, 1, ReduceOp::kSum, {})},
          {"shape", reduce(DType::kF32, 0, ReduceOp::kSum, shape_a),
           reduce(DType::kF32, 0, ReduceOp::kSum, shape_b)},
          {"dtype of equal size", reduce(DType::kBf16, 0, ReduceOp::kSum, {}),
           reduce(DType::kF16, 0, ReduceOp::kSum, {})},
          {"reduce op", plain, reduce(DType::kF32, 0, ReduceOp::kMax, {})},
          {"op", plain, broadcast(0, DType::kF32)},
          {"root", broadcast(0, DType::kF32), broadcast(1, DType::kF32)},
          {"broadcast dtype", broadcast(0, DType::kF32), broadcast(0, DType::kI32)},
          {"gather rows", gather(1, DType::kF32), gather(2, DType::kF32)},
          {"gather dtype", gather(1, DType::kF32), gather(1, DType::kI32)},
          {"scatter widths", scatter(n), scatter(n - 8)},
          {"all_to_all counts", all_to_all(0, 0), all_to_all(1, 0)},
          {"barrier for sum", barrier("b"), plain},
          {"site", barrier("here"), barrier("there")}};
}

}  // namespace contract

TEST_P(TransportContract, RanksThatDisagree_AllReadBothCallsAndKeepTheirData) {
  using testing::HasSubstr;
  // Small calls pass through the shared segment, large ones are read in place.
  for (const int64_t count : {16, 80000}) {
    for (const auto& kind : contract::disagreements(count)) {
      for (const int n : {2, 3, 4}) {
        SCOPED_TRACE(str(kind.what, ", count ", count, ", ", n, " ranks"));
        const auto cause = run_to_failure(n, [&](World& world) {
          const auto group = contract::all(world);
          group->barrier(contract::call("start"));
          const auto begin = std::chrono::steady_clock::now();
          Values data(DType::kF32, count * 4, [](int64_t i) { return contract::number(1, i); });
          const Values before = data;
          const std::string text = contract::expect_error(
              Code::kDesync, [&] { (world.rank() == 0 ? kind.first : kind.others)(*group, data); });
          EXPECT_THAT(text, HasSubstr("rank 0"));
          EXPECT_THAT(text, testing::ContainsRegex("rank [123]"));
          EXPECT_LT(test::milliseconds_since(begin), 1000);  // 100 on a quiet machine
          EXPECT_TRUE(data == before);
          throw Error(Code::kDesync, text);
        });
        ASSERT_TRUE(cause.has_value());
        EXPECT_EQ(cause->code(), Code::kDesync) << cause->what();
      }
    }
  }
}

TEST_P(TransportContract, Disagreement_IsReportedWithSequenceShapeDtypeAndSite) {
  const auto cause = run_to_failure(2, [](World& world) {
    const auto group = contract::all(world);
    const std::vector<int64_t> shape{2, 8};
    std::vector<float> data(16);
    for (int i = 0; i < 4; ++i) group->barrier(contract::call("start"));
    if (world.rank() == 0) {
      group->all_reduce(data.data(), data.data(), 16, DType::kF32, ReduceOp::kSum,
                        {.site = "layers.3.mlp", .shape = shape});
    } else {
      group->broadcast(data.data(), 16, DType::kI32, 1, contract::call("weights"));
    }
  });
  ASSERT_TRUE(cause.has_value());
  const std::string place = GetParam().moves_device_memory ? "on the device, " : "";
  EXPECT_EQ(
      cause->what(),
      "ranks 0 and 1 differ on axis all: rank 0 calls all_reduce 5 (sum, fp32, count 16, " + place +
          "shape [2, 8], at layers.3.mlp); rank 1 calls broadcast 5 (int32, count 16, root 1, " +
          place + "shape [], at weights); they must be the same");
}

TEST_P(TransportContract, DifferentWidths_AreReported) {
  const auto cause = run_to_failure(2, [](World& world) {
    const auto group = contract::all(world);
    const std::vector<int64_t> widths =
        world.rank() == 0 ? std::vector<int64_t>{3, 1} : std::vector<int64_t>{1, 3};
    Values data(DType::kF32, 16, [](int64_t i) { return contract::number(1, i); });
    group->all_gather(data.data(), data.data(), 2, widths, DType::kF32, contract::call("gather"));
  });
  ASSERT_TRUE(cause.has_value());
  const std::string place = GetParam().moves_device_memory ? "on the device, " : "";
  EXPECT_EQ(cause->what(),
            "ranks 0 and 1 differ on axis all: rank 0 calls all_gather 1 (fp32, rows "
            "2, widths [3, 1], " +
                place +
                "shape [], at gather); rank 1 calls "
                "all_gather 1 (fp32, rows 2, widths [1, 3], " +
                place + "shape [], at gather); they must be the same");
}

TEST_P(TransportContract, RankThatLeavesEarly_IsADesyncOnTheOthers) {
  const auto begin = std::chrono::steady_clock::now();
  const auto cause = run_to_failure(3, [](World& world) {
    const auto group = contract::all(world);
    group->barrier(contract::call("first"));
    if (world.rank() == 1) return;
    contract::expect_error(Code::kDesync, [&] { group->barrier(contract::call("extra")); });
  });
  ASSERT_TRUE(cause.has_value());
  EXPECT_EQ(cause->code(), Code::kDesync);
  EXPECT_THAT(cause->what(), testing::HasSubstr("rank 1 has left after barrier 1 on axis all at "
                                                "first"));
  EXPECT_LT(test::milliseconds_since(begin), 2000);
}

TEST_P(TransportContract, RanksInDifferentGroups_AreReportedAsADeadlock) {
  const auto begin = std::chrono::steady_clock::now();
  const auto cause = run_to_failure(3, [](World& world) {
    const auto all = contract::all(world), again = world.group({0, 1, 2}, "again");
    contract::expect_error(
        Code::kDesync, [&] { (world.rank() == 1 ? again : all)->barrier(contract::call("mine")); });
  });
  ASSERT_TRUE(cause.has_value());
  EXPECT_EQ(cause->code(), Code::kDesync);
  EXPECT_THAT(cause->what(), testing::HasSubstr("axis again"));
  EXPECT_THAT(cause->what(), testing::HasSubstr("axis all"));
  EXPECT_LT(test::milliseconds_since(begin), 2000);
}

TEST_P(TransportContract, BothReceiving_AreReportedAsADeadlock) {
  const auto cause = run_to_failure(2, [](World& world) {
    const auto group = contract::all(world);
    float value = 0;
    contract::expect_error(Code::kDesync, [&] {
      group->recv(&value, 1, DType::kF32, 1 - world.rank(), contract::call("first"));
    });
  });
  ASSERT_TRUE(cause.has_value());
  EXPECT_THAT(cause->what(),
              testing::HasSubstr("rank 0 in recv 1 on axis all at first for rank 1"));
}

TEST_P(TransportContract, MessageOfAnotherDtype_IsADesync) {
  const auto cause = run_to_failure(2, [](World& world) {
    const auto group = contract::all(world);
    int64_t value = 7;
    if (world.rank() == 0) {
      group->send(&value, 1, DType::kI64, 1, contract::call("out"));
      contract::expect_error(Code::kDesync, [&] { group->barrier(contract::call("after")); });
      return;
    }
    contract::expect_error(Code::kDesync,
                           [&] { group->recv(&value, 1, DType::kF64, 0, contract::call("in")); });
    EXPECT_EQ(value, 7);
  });
  ASSERT_TRUE(cause.has_value());
  EXPECT_THAT(cause->what(), testing::HasSubstr("send 1 (int64, count 1"));
  EXPECT_THAT(cause->what(), testing::HasSubstr("recv 1 (fp64, count 1"));
}

TEST_P(TransportContract, RankThatFails_StopsTheOthersWithItsCause) {
  const auto cause = run_to_failure(4, [](World& world) {
    const auto group = contract::all(world);
    world.note_step(37);
    group->barrier(contract::call("start"));
    if (world.rank() == 2) throw Error(Code::kNumerics, "loss is nan");
    const auto begin = std::chrono::steady_clock::now();
    const std::string text =
        contract::expect_error(Code::kPeer, [&] { group->barrier(contract::call("end")); });
    EXPECT_LT(test::milliseconds_since(begin), 250);
    EXPECT_THAT(text, testing::HasSubstr("rank 2 failed: loss is nan; rank "));
    EXPECT_THAT(text, testing::HasSubstr("stopped in barrier 2 on axis all at end in step 37"));
    contract::expect_error(Code::kPeer, [&] { group->barrier(contract::call("later")); });
    throw Error(Code::kPeer, text);
  });
  ASSERT_TRUE(cause.has_value());
  EXPECT_EQ(cause->code(), Code::kNumerics);
  EXPECT_STREQ(cause->what(), "loss is nan");
}

TEST_P(TransportContract, RankThatFailsBetweenLargeCollectives_LeavesNobodyReadingItsMemory) {
  for (int round = 0; round < 8; ++round) {
    const auto cause = run_to_failure(3, [round](World& world) {
      const auto all = contract::all(world);
      const auto pair = world.rank() < 2 ? world.group({0, 1}, "pair") : nullptr;
      for (int i = 0;; ++i) {
        // Freed in every iteration: a late reader would access freed memory.
        std::vector<float> data(60000, 1.0F), other(60000);
        if (world.rank() == 2 && i == round) throw Error(Code::kNumerics, "injected");
        if (pair) {
          pair->all_reduce(data.data(), other.data(), 60000, DType::kF32, ReduceOp::kSum,
                           contract::call("pair"));
        }
        if (i % 2 == 1 || world.rank() == 2) {
          all->all_reduce(data.data(), other.data(), 60000, DType::kF32, ReduceOp::kSum,
                          contract::call("all"));
        }
        if (i > 1000) return;
      }
    });
    ASSERT_TRUE(cause.has_value());
    EXPECT_EQ(cause->code(), Code::kNumerics) << cause->what();
  }
}

TEST_P(TransportContract, ExceptionsOfOtherKinds_BecomeErrors) {
  const auto memory = run_to_failure(2, [](World& world) {
    if (world.rank() == 1) throw std::bad_alloc();
    contract::all(world)->barrier(contract::call("x"));
  });
  ASSERT_TRUE(memory.has_value());
  EXPECT_EQ(memory->code(), Code::kMemory);
  const auto other = run_to_failure(2, [](World& world) {
    if (world.rank() == 0) throw std::runtime_error("exception of another library");
    contract::all(world)->barrier(contract::call("x"));
  });
  ASSERT_TRUE(other.has_value());
  EXPECT_EQ(other->code(), Code::kBug);
  EXPECT_STREQ(other->what(), "exception of another library");
}

TEST_P(TransportContract, RankThatStaysAway_IsNamedAfterTheTimeout) {
  const auto begin = std::chrono::steady_clock::now();
  const auto cause = run_to_failure(
      3,
      [](World& world) {
        const auto group = contract::all(world);
        world.note_step(4);
        group->barrier(contract::call("together"));
        // The fault: a rank that is late by more than the timeout.
        if (world.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(900));
        group->barrier(contract::call("loss"));
      },
      0.4);
  EXPECT_LT(test::milliseconds_since(begin), 2000);
  ASSERT_TRUE(cause.has_value());
  EXPECT_EQ(cause->code(), Code::kTimeout);
  EXPECT_THAT(cause->what(), testing::HasSubstr("in barrier 2 on axis all at loss for rank 1; "
                                                "rank 1 is after barrier 1"));
}

TEST_P(TransportContract, ImpossibleArguments_AreRefusedWithTheirValues) {
  run(2, [](World& world) {
    const auto group = contract::all(world);
    std::vector<float> data(8);
    const std::vector<int64_t> widths{1};
    using contract::expect_error;
    expect_error(Code::kUsage, [&] { world.group({1, 0}, "x"); });
    expect_error(Code::kUsage, [&] { world.group({1 - world.rank()}, "x"); });
    expect_error(Code::kUsage, [&] { world.group({0, 2}, "x"); });
    expect_error(Code::kUsage,
                 [&] { group->broadcast(data.data(), 8, DType::kF32, 2, contract::call("x")); });
    expect_error(Code::kUsage, [&] {
      group->all_reduce(data.data(), data.data(), -1, DType::kF32, ReduceOp::kSum,
                        contract::call("x"));
    });
    expect_error(Code::kUsage, [&] {
      group->all_reduce(data.data(), data.data(), 8, DType::kBool, ReduceOp::kSum,
                        contract::call("x"));
    });
    expect_error(Code::kUsage, [&] {
      group->all_gather(data.data(), data.data(), 1, widths, DType::kF32, contract::call("x"));
    });
    expect_error(Code::kUsage, [&] {
      group->send(data.data(), 8, DType::kF32, world.rank(), contract::call("x"));
    });
    group->barrier(contract::call("still usable"));
  });
}

}  // namespace cleave::inline comm
