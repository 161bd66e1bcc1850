#pragma once
// Part of transport_contract.h: what collectives compute. Oracles are closed forms.
#include "tests/support/level.h"
#include "tests/support/transport_contract.h"

namespace cleave::inline comm {

TEST_P(TransportContract, AllReduceSum_GivesTheSumOnEveryRank) {
  for (int n = 1; n <= 4; ++n) {
    run(n, [n](World& world) {
      const auto group = contract::all(world);
      for (const DType dtype : contract::kDTypes) {
        for (const int64_t count : {0, 1, 7, 1000, 70001}) {
          SCOPED_TRACE(str(n, " ranks, ", name(dtype), ", count ", count));
          Values in(dtype, count, [&](int64_t i) { return contract::number(world.rank(), i); });
          Values out(dtype, count);
          const Values want(dtype, count, [&](int64_t i) {
            return static_cast<double>(n * (n + 1) / 2) * static_cast<double>(i % 7 - 3);
          });
          group->all_reduce(in.data(), out.data(), count, dtype, ReduceOp::kSum,
                            contract::call("sum"));
          EXPECT_TRUE(out == want);
          group->all_reduce(in.data(), in.data(), count, dtype, ReduceOp::kSum,
                            contract::call("in place"));
          EXPECT_TRUE(in == want);
        }
      }
    });
  }
}

TEST_P(TransportContract, AllReduceMax_GivesTheLargestOnEveryRank) {
  for (int n = 1; n <= 4; ++n) {
    run(n, [n](World& world) {
      const auto group = contract::all(world);
      for (const DType dtype : contract::kDTypes) {
        for (const int64_t count : {3, 20000}) {
          Values data(dtype, count, [&](int64_t i) { return contract::number(world.rank(), i); });
          const Values want(dtype, count, [&](int64_t i) {
            return static_cast<double>((i % 7 > 3 ? n : 1) * (i % 7 - 3));
          });
          group->all_reduce(data.data(), data.data(), count, dtype, ReduceOp::kMax,
                            contract::call("max"));
          EXPECT_TRUE(data == want) << n << " ranks, " << name(dtype) << ", count " << count;
        }
      }
    });
  }
}

// Oracle: the same additions in rank order, one after the other.
TEST_P(TransportContract, AllReduceOfRoundedNumbers_AddsInRankOrder) {
  run(4, [](World& world) {
    const auto group = contract::all(world);
    const auto value = [](int rank, int64_t i) {
      return static_cast<float>((i * 7919 + rank * 104729) % 1000003) *
             (rank % 2 == 0 ? 1e-3F : 37.1F);
    };
    for (const int64_t count : {5, 100003}) {
      Values single(DType::kF32, count, [&](int64_t i) { return value(world.rank(), i); });
      Values half(DType::kBf16, count, [&](int64_t i) { return value(world.rank(), i); });
      group->all_reduce(single.data(), single.data(), count, DType::kF32, ReduceOp::kSum,
                        contract::call("fp32"));
      group->all_reduce(half.data(), half.data(), count, DType::kBf16, ReduceOp::kSum,
                        contract::call("bf16"));
      const auto ordered_sum = [&](int64_t i, bool rounds) {
        float sum = 0;
        for (int r = 0; r < 4; ++r) {
          const float term = value(r, i);
          sum += rounds ? bf16_to_fp32(fp32_to_bf16(term)) : term;
        }
        return sum;
      };
      EXPECT_TRUE(single ==
                  Values(DType::kF32, count, [&](int64_t i) { return ordered_sum(i, false); }));
      EXPECT_TRUE(half ==
                  Values(DType::kBf16, count, [&](int64_t i) { return ordered_sum(i, true); }));
    }
  });
}

// Oracle: rank 0. All ranks have its bits, whichever rank adds and in whichever pieces.
TEST_P(TransportContract, AllReduceOfAnySizeAndWorld_GivesAllRanksTheSameBits) {
  for (const int n : {2, 3, 5, 8}) {
    run(n, [n](World& world) {
      const auto group = contract::all(world);
      for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
        for (const int64_t count : {1, 257, 4099, 20011, 200003}) {
          const auto value = [](int rank, int64_t i) {
            return static_cast<double>((i * 7919 + rank * 104729) % 100003) * 1e-3 - 40.0 * rank;
          };
          Values data(dtype, count, [&](int64_t i) { return value(world.rank(), i); });
          group->all_reduce(data.data(), data.data(), count, dtype, ReduceOp::kSum,
                            contract::call("sum"));
          Values first = data;
          group->broadcast(first.data(), count, dtype, 0, contract::call("bits of rank 0"));
          EXPECT_TRUE(data == first) << n << " ranks, " << name(dtype) << ", count " << count;
        }
      }
    });
  }
}

TEST_P(TransportContract, AllGather_JoinsUnevenColumns) {
  for (int n = 1; n <= 4; ++n) {
    run(n, [n](World& world) {
      const auto group = contract::all(world);
      for (const DType dtype : contract::kDTypes) {
        for (const auto& [rows, unit] :
             {std::pair<int64_t, int64_t>{0, 3}, {1, 5}, {3, 2}, {37, 2001}}) {
          const auto widths = contract::uneven_widths(n, unit);
          const int64_t whole = contract::total(widths);
          const int64_t width = widths[static_cast<size_t>(world.rank())];
          SCOPED_TRACE(str(n, " ranks, ", name(dtype), ", rows ", rows, ", unit ", unit));
          Values in(dtype, rows * width,
                    [&](int64_t i) { return contract::number(world.rank(), i); });
          Values out(dtype, rows * whole), want(dtype, rows * whole);
          for (int64_t row = 0, at = 0; row < rows; ++row) {
            for (int r = 0; r < n; ++r) {
              const int64_t w = widths[static_cast<size_t>(r)];
              for (int64_t k = 0; k < w; ++k) want.set(at++, contract::number(r, row * w + k));
            }
          }
          group->all_gather(in.data(), out.data(), rows, widths, dtype, contract::call("gather"));
          EXPECT_TRUE(out == want);
          Values both(dtype, rows * whole);
          for (int64_t i = 0; i < rows * width; ++i) both.set(i, contract::number(world.rank(), i));
          group->all_gather(both.data(), both.data(), rows, widths, dtype,
                            contract::call("gather in place"));
          EXPECT_TRUE(both == want);
        }
      }
    });
  }
}

TEST_P(TransportContract, ReduceScatter_GivesEachRankTheSumOfItsColumns) {
  for (int n = 1; n <= 4; ++n) {
    run(n, [n](World& world) {
      const auto group = contract::all(world);
      for (const DType dtype : contract::kDTypes) {
        for (const auto& [rows, unit] :
             {std::pair<int64_t, int64_t>{0, 3}, {1, 5}, {3, 2}, {37, 2001}}) {
          const auto widths = contract::uneven_widths(n, unit);
          const int64_t whole = contract::total(widths);
          const int64_t width = widths[static_cast<size_t>(world.rank())];
          const int64_t begin =
              std::accumulate(widths.begin(), widths.begin() + world.rank(), int64_t{0});
          SCOPED_TRACE(str(n, " ranks, ", name(dtype), ", rows ", rows, ", unit ", unit));
          Values in(dtype, rows * whole,
                    [&](int64_t i) { return contract::number(world.rank(), i); });
          Values out(dtype, rows * width), want(dtype, rows * whole);
          for (int64_t i = 0; i < rows * width; ++i) {
            const int64_t at = i / width * whole + begin + i % width;
            const double sum =
                static_cast<double>(n * (n + 1) / 2) * static_cast<double>(at % 7 - 3);
            want.set(i, sum);
          }
          group->reduce_scatter(in.data(), out.data(), rows, widths, dtype,
                                contract::call("scatter"));
          EXPECT_TRUE(out.begins_as(want, rows * width));
          group->reduce_scatter(in.data(), in.data(), rows, widths, dtype,
                                contract::call("scatter in place"));
          EXPECT_TRUE(in.begins_as(want, rows * width));
        }
      }
    });
  }
}

TEST_P(TransportContract, Broadcast_GivesTheRootsDataToAll) {
  for (int n = 1; n <= 4; ++n) {
    run(n, [n](World& world) {
      const auto group = contract::all(world);
      for (int root = 0; root < n; ++root) {
        for (const int64_t count : {0, 1, 300001}) {
          Values data(DType::kF32, count,
                      [&](int64_t i) { return contract::number(world.rank(), i); });
          group->broadcast(data.data(), count, DType::kF32, root, contract::call("broadcast"));
          EXPECT_TRUE(data == Values(DType::kF32, count,
                                     [&](int64_t i) { return contract::number(root, i); }))
              << n << " ranks, root " << root << ", count " << count;
        }
      }
    });
  }
}

TEST_P(TransportContract, AllToAll_ExchangesUnevenParts) {
  for (int n = 1; n <= 4; ++n) {
    run(n, [n](World& world) {
      const auto group = contract::all(world);
      for (const int64_t unit : {0, 1, 9000}) {
        // Rank a sends unit * (a + 2b) elements of value 10a + b to rank b.
        const auto size = [&](int a, int b) { return unit * (a + 2 * b); };
        std::vector<int64_t> send, recv;
        for (int r = 0; r < n; ++r) send.push_back(size(world.rank(), r));
        for (int r = 0; r < n; ++r) recv.push_back(size(r, world.rank()));
        const int64_t size_all = std::max(contract::total(send), contract::total(recv));
        Values in(DType::kI64, size_all), out(DType::kI64, size_all), want(DType::kI64, size_all);
        for (int r = 0, at = 0; r < n; ++r) {
          for (int64_t k = 0; k < send[static_cast<size_t>(r)]; ++k) {
            in.set(at++, 10 * world.rank() + r);
          }
        }
        for (int r = 0, at = 0; r < n; ++r) {
          for (int64_t k = 0; k < recv[static_cast<size_t>(r)]; ++k) {
            want.set(at++, 10 * r + world.rank());
          }
        }
        group->all_to_all(in.data(), send, out.data(), recv, DType::kI64, contract::call("a2a"));
        EXPECT_TRUE(out == want) << n << " ranks, unit " << unit;
        group->all_to_all(in.data(), send, in.data(), recv, DType::kI64, contract::call("a2a"));
        EXPECT_TRUE(in.begins_as(want, contract::total(recv))) << n << " ranks, unit " << unit;
      }
    });
  }
}

TEST_P(TransportContract, AllToAll_MovesTheOnlyPartThatIsNotEmpty) {
  run(3, [](World& world) {
    const auto group = contract::all(world);
    for (const int64_t count : {1, 70000}) {
      std::vector<int64_t> send(3), recv(3);
      if (world.rank() == 1) send[2] = count;
      if (world.rank() == 2) recv[1] = count;
      Values in(DType::kF32, count, [](int64_t i) { return contract::number(1, i); });
      Values out(DType::kF32, count);
      group->all_to_all(in.data(), send, out.data(), recv, DType::kF32, contract::call("one part"));
      EXPECT_TRUE(world.rank() != 2 || out == in) << count;
    }
  });
}

TEST_P(TransportContract, SendBeforeReceiveOnAllRanks_DoesNotBlock) {
  run(3, [](World& world) {
    const auto group = contract::all(world);
    const int next = (world.rank() + 1) % 3, before = (world.rank() + 2) % 3;
    for (const int64_t count : {0, 1, 5, 500001}) {
      Values out(DType::kF32, count, [&](int64_t i) { return contract::number(world.rank(), i); });
      Values in(DType::kF32, count);
      group->send(out.data(), count, DType::kF32, next, contract::call("ring send"));
      group->recv(in.data(), count, DType::kF32, before, contract::call("ring recv"));
      EXPECT_TRUE(
          in == Values(DType::kF32, count, [&](int64_t i) { return contract::number(before, i); }));
    }
  });
}

TEST_P(TransportContract, SendToARankThatWaitsForAnother_DoesNotBlock) {
  run(3, [](World& world) {
    constexpr int64_t kCount = 500001;  // more than the message ring buffers
    const auto group = contract::all(world);
    Values large(DType::kF32, kCount, [](int64_t i) { return contract::number(0, i); });
    float small = 7;
    if (world.rank() == 0) {
      group->send(large.data(), kCount, DType::kF32, 1, contract::call("large"));
      group->send(&small, 1, DType::kF32, 2, contract::call("small"));
    } else if (world.rank() == 2) {
      group->recv(&small, 1, DType::kF32, 0, contract::call("small"));
      group->send(&small, 1, DType::kF32, 1, contract::call("passed on"));
    } else {
      Values got(DType::kF32, kCount);
      group->recv(&small, 1, DType::kF32, 2, contract::call("passed on"));
      group->recv(got.data(), kCount, DType::kF32, 0, contract::call("large"));
      EXPECT_TRUE(got == large);
    }
  });
}

TEST_P(TransportContract, MessagesOfTwoGroups_AreKeptApart) {
  run(2, [](World& world) {
    const auto a = world.group({0, 1}, "a"), b = world.group({0, 1}, "b");
    if (world.rank() == 0) {
      for (int64_t i = 0; i < 20; ++i) {
        a->send(&i, 1, DType::kI64, 1, contract::call("a"));
        const int64_t other = 100 + i;
        b->send(&other, 1, DType::kI64, 1, contract::call("b"));
      }
      return;
    }
    int64_t got = 0;
    for (int64_t i = 0; i < 20; ++i) {
      b->recv(&got, 1, DType::kI64, 0, contract::call("b"));
      EXPECT_EQ(got, 100 + i);
    }
    for (int64_t i = 0; i < 20; ++i) {
      a->recv(&got, 1, DType::kI64, 0, contract::call("a"));
      EXPECT_EQ(got, i);
    }
  });
}

TEST_P(TransportContract, GroupsMadeByTheirMembers_WorkSideBySide) {
  run(4, [](World& world) {
    const bool is_odd = world.rank() % 2 == 1;
    const auto parity = world.group(is_odd ? std::vector{1, 3} : std::vector{0, 2}, "parity");
    const auto self = world.group({world.rank()}, "self");
    EXPECT_EQ(parity->rank(), world.rank() / 2);
    EXPECT_EQ(self->size(), 1);
    EXPECT_EQ(parity->name(), "parity");
    for (int round = 0; round < 50; ++round) {
      int64_t sum = world.rank() + round;
      parity->all_reduce(&sum, &sum, 1, DType::kI64, ReduceOp::kSum, contract::call("parity"));
      EXPECT_EQ(sum, (is_odd ? 4 : 2) + 2 * round);
      int64_t own = world.rank();
      self->all_reduce(&own, &own, 1, DType::kI64, ReduceOp::kSum, contract::call("self"));
      EXPECT_EQ(own, world.rank());
      if (world.rank() == 0) continue;
      const auto last_three = world.group({1, 2, 3}, "last_three");
      int64_t last = world.rank();
      if (round < 10) {
        last_three->broadcast(&last, 1, DType::kI64, 2, contract::call("last_three"));
      }
      EXPECT_EQ(last, round < 10 ? 3 : world.rank());
    }
  });
}

TEST_P(TransportContract, ManySmallCollectives_KeepTheirOrder) {
  // Under sanitizers 10^5 on the three transports together.
  const int64_t num_calls = test::kIsInstrumented ? 35'000 : 3'000;
  run(3, [num_calls](World& world) {
    const auto group = contract::all(world);
    for (int64_t i = 0; i < num_calls; ++i) {
      float value = static_cast<float>(i * (world.rank() + 1));
      group->all_reduce(&value, &value, 1, DType::kF32, ReduceOp::kSum, contract::call("many"));
      ASSERT_EQ(value, static_cast<float>(6 * i));
    }
    group->barrier(contract::call("end"));
  });
}

}  // namespace cleave::inline comm
