#include "cleave/comm/hosts/host_collectives.h"

#include <barrier>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "cleave/base/str.h"
#include "cleave/comm/shm/collectives.h"
#include "tests/support/float16.h"

namespace cleave::host_collectives_test {
namespace {

using Bytes = std::vector<std::byte>;

/// The memory through which the members of one lane exchange bytes, and the bytes that passed.
struct LaneMemory {
  explicit LaneMemory(int num_hosts) : sent(static_cast<size_t>(num_hosts)), all(num_hosts) {}
  struct Sent {
    const std::byte* buffer = nullptr;
    std::vector<ByteRange> to;
  };
  std::vector<Sent> sent;  // by host
  std::barrier<> all;
  std::mutex mutex;
  std::map<std::pair<int, int>, int64_t> num_bytes;  // by sender and receiver
  int64_t num_summed = 0;                            // bytes, over all hosts
};

/// A host's side. Bytes that were not sent to it have another value in what it receives.
class MemoryExchange : public HostExchange {
 public:
  MemoryExchange(LaneMemory& lane, int host) : lane_(lane), host_(host) {
    for (Bytes& own : own_) own.resize(kBufferBytes);
    received_.resize(lane.sent.size());
  }
  [[nodiscard]] std::byte* buffer() override { return own_[count_ % 2].data(); }
  [[nodiscard]] const std::byte* received(int host) const override {
    return host == host_ ? own_[(count_ + 1) % 2].data()
                         : received_[static_cast<size_t>(host)].data();
  }
  void exchange(std::span<const ByteRange> to, std::span<const ByteRange> from) override {
    lane_.sent[static_cast<size_t>(host_)] = {buffer(), {to.begin(), to.end()}};
    ++count_;
    lane_.all.arrive_and_wait();
    for (size_t other = 0; other < received_.size(); ++other) {
      if (static_cast<int>(other) == host_) continue;
      const auto& [buffer, ranges] = lane_.sent[other];
      const ByteRange& range = ranges[static_cast<size_t>(host_)];
      EXPECT_EQ(range, from[other]) << "from host " << other << " to host " << host_;
      received_[other].assign(kBufferBytes, std::byte{0xee});
      if (range.bytes > 0) {
        std::memcpy(received_[other].data() + range.begin, buffer + range.begin,
                    static_cast<size_t>(range.bytes));
      }
      const std::lock_guard lock(lane_.mutex);
      lane_.num_bytes[{static_cast<int>(other), host_}] += range.bytes;
    }
    lane_.all.arrive_and_wait();
  }
  /// Adds the hosts in reverse order.
  void sum(int64_t bytes, DType dtype) override {
    ASSERT_EQ(dtype, DType::kF32);
    lane_.sent[static_cast<size_t>(host_)] = {buffer(), {}};
    lane_.all.arrive_and_wait();
    std::vector<float> sums(static_cast<size_t>(bytes) / sizeof(float));
    for (size_t host = received_.size(); host-- > 0;) {
      for (size_t i = 0; i < sums.size(); ++i) {
        float value = 0;
        std::memcpy(&value, lane_.sent[host].buffer + i * sizeof(float), sizeof(float));
        sums[i] += value;
      }
    }
    lane_.all.arrive_and_wait();
    std::memcpy(buffer(), sums.data(), static_cast<size_t>(bytes));
    const std::lock_guard lock(lane_.mutex);
    lane_.num_summed += bytes;
  }

 private:
  LaneMemory& lane_;
  int host_;
  size_t count_ = 0;
  Bytes own_[2];
  std::vector<Bytes> received_;  // by host
};

/// Hosts of so many members each, whose members are threads.
class SimulatedHosts {
 public:
  explicit SimulatedHosts(std::vector<int> sizes) : sizes_(std::move(sizes)) {
    for (const int size : sizes_) {
      ids_.insert(ids_.end(), static_cast<size_t>(size), static_cast<int64_t>(ids_.size()));
      // Private segments have small payloads, so that a piece passes through them in parts.
      segments_.push_back(SharedSegment::create_private(size));
    }
    const int num_lanes = HostLayout::make(ids_, 0)->num_lanes;
    for (int lane = 0; lane < num_lanes; ++lane) {
      lanes_.push_back(std::make_unique<LaneMemory>(static_cast<int>(sizes_.size())));
    }
  }

  [[nodiscard]] int num_members() const { return static_cast<int>(ids_.size()); }
  [[nodiscard]] int first_of(int host) const {
    return std::accumulate(sizes_.begin(), sizes_.begin() + host, 0);
  }
  [[nodiscard]] int num_hosts() const { return static_cast<int>(sizes_.size()); }

  /// Calls body(links, member) on the threads of all members.
  template <class Body>
  void run(const Body& body) {
    std::vector<std::thread> threads;
    for (int member = 0; member < num_members(); ++member) {
      threads.emplace_back([this, member, &body] {
        const auto links = links_of(member);
        body(*links, member);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  /// Bytes that one host has sent to another, over all lanes.
  [[nodiscard]] int64_t num_bytes(int from, int to) const {
    int64_t sum = 0;
    for (const auto& lane : lanes_) sum += lane->num_bytes[{from, to}];
    return sum;
  }
  /// Bytes that the exchanges have added, over all hosts and lanes.
  [[nodiscard]] int64_t num_summed() const {
    int64_t sum = 0;
    for (const auto& lane : lanes_) sum += lane->num_summed;
    return sum;
  }

 private:
  std::unique_ptr<HostLinks> links_of(int member) {
    auto links = std::make_unique<HostLinks>();
    links->layout = *HostLayout::make(ids_, member);
    const auto host = static_cast<size_t>(links->layout.host);
    const int local = links->layout.local;
    if (sizes_[host] == 1) {
      links->buffers = std::make_unique<HostBuffers>();
    } else {
      const auto endpoint = std::make_shared<RankEndpoint>(
          segments_[host], local, RankOptions{.timeout_s = 20, .flight_log_folder = ""});
      std::vector<int> ranks(static_cast<size_t>(sizes_[host]));
      std::iota(ranks.begin(), ranks.end(), 0);
      const uint32_t group = segments_[host]->join_group(7, ranks, "all");
      links->buffers = std::make_unique<HostBuffers>(endpoint, group, local);
    }
    if (links->layout.has_lane()) {
      links->exchange =
          std::make_unique<MemoryExchange>(*lanes_[static_cast<size_t>(local)], links->layout.host);
    }
    return links;
  }

  std::vector<int> sizes_;
  std::vector<int64_t> ids_;  // host of each member
  std::vector<std::shared_ptr<SharedSegment>> segments_;
  std::vector<std::unique_ptr<LaneMemory>> lanes_;
};

const std::vector<std::vector<int>> kShapes{{2, 2}, {1, 2}, {3, 1}, {2, 3, 2}, {2, 2, 2, 2}};

/// Numbers whose sums round, so that their order decides the last bits.
Bytes numbers(DType dtype, int64_t count, int seed) {
  std::mt19937 random(static_cast<unsigned>(seed));
  Bytes out(static_cast<size_t>(count * item_bytes(dtype)));
  for (int64_t i = 0; i < count; ++i) {
    const float value = (static_cast<float>(random() % 2000001) - 1e6F) * (seed % 2 == 0 ? 1 : 37);
    const uint16_t half = fp32_to_bf16(value);
    const void* from = dtype == DType::kBf16 ? static_cast<const void*>(&half) : &value;
    std::memcpy(out.data() + i * item_bytes(dtype), from, static_cast<size_t>(item_bytes(dtype)));
  }
  return out;
}

std::vector<Bytes> inputs(DType dtype, int64_t count, int num_members) {
  std::vector<Bytes> in;
  for (int member = 0; member < num_members; ++member) in.push_back(numbers(dtype, count, member));
  return in;
}

/// Oracle: all members' values added in one call, in the order of the members.
Bytes sum_of(const std::vector<Bytes>& in, DType dtype) {
  std::vector<const void*> pointers;
  for (const Bytes& one : in) pointers.push_back(one.data());
  Bytes out(in[0].size());
  void* to = out.data();
  reduce(pointers, {&to, 1}, static_cast<int64_t>(out.size()) / item_bytes(dtype), dtype,
         ReduceOp::kSum);
  return out;
}

Operation sum(Op op, DType dtype, int64_t count) {
  return {.op = op, .dtype = dtype, .count = count, .widths = {}, .call = {}};
}

/// What an all-reduce or reduce-scatter sends from one host to another: accumulators of all
/// elements go to the next host; results of `wanted` bytes go back.
int64_t bytes_of_sum(int from, int to, int64_t accumulators, int64_t wanted) {
  return to == from + 1 ? accumulators : wanted;
}

// The bytes between hosts do not depend on how many members a host has.
TEST(HostCollectives, AllReduce_HasTheBitsOfRankOrderAndSendsEachByteOnceEachWay) {
  constexpr int64_t kCount = 300'001;  // several pieces; the last one is short
  for (const auto& shape : kShapes) {
    for (const DType dtype : {DType::kF32, DType::kBf16}) {
      SCOPED_TRACE(str("hosts of ", shape[0], ", ", shape[1], ", ... members, ", name(dtype)));
      SimulatedHosts hosts(shape);
      std::vector<Bytes> data = inputs(dtype, kCount, hosts.num_members());
      const Bytes want = sum_of(data, dtype);
      hosts.run([&](HostLinks& links, int member) {
        Bytes& own = data[static_cast<size_t>(member)];
        const Operation operation = sum(Op::kAllReduce, dtype, kCount);
        host_all_reduce(links, operation, {own.data(), own.data()});  // in place
      });
      for (const Bytes& got : data) EXPECT_TRUE(got == want);
      for (int from = 0; from < hosts.num_hosts(); ++from) {
        for (int to = 0; to < hosts.num_hosts(); ++to) {
          const int64_t back = to == from - 1 ? kCount * item_bytes(dtype) : 0;
          EXPECT_EQ(hosts.num_bytes(from, to),
                    from == to ? 0 : bytes_of_sum(from, to, kCount * 4, back))
              << from << " to " << to;
        }
      }
    }
  }
}

TEST(HostCollectives, ReduceScatter_HasTheBitsOfRankOrderAndSendsResultsToTheirHostOnly) {
  constexpr int64_t kRows = 37;
  for (const auto& shape : kShapes) {
    for (const DType dtype : {DType::kF32, DType::kBf16}) {
      SCOPED_TRACE(str("hosts of ", shape[0], ", ", shape[1], ", ... members, ", name(dtype)));
      SimulatedHosts hosts(shape);
      const int n = hosts.num_members();
      std::vector<int64_t> widths;
      for (int m = 0; m < n; ++m) widths.push_back(m == 1 ? 0 : 801 + m);
      const Blocks blocks(kRows, widths, item_bytes(dtype));
      const int64_t count = kRows * blocks.whole_row_bytes() / item_bytes(dtype);
      const std::vector<Bytes> in = inputs(dtype, count, n);
      const Bytes want = sum_of(in, dtype);
      hosts.run([&](HostLinks& links, int member) {
        Bytes own = in[static_cast<size_t>(member)];  // in place
        const Operation operation = sum(Op::kReduceScatter, dtype, kRows);
        host_reduce_scatter(links, operation, blocks, {own.data(), own.data()});
        Bytes part(static_cast<size_t>(blocks.block_bytes(member)));
        blocks.pack(want.data(), member, 0, part);
        own.resize(part.size());
        EXPECT_TRUE(own == part) << member;
      });
      const int last = hosts.num_hosts() - 1;
      for (int to = 0; to < last; ++to) {
        int64_t wanted = 0;
        for (int m = hosts.first_of(to); m < hosts.first_of(to + 1); ++m) {
          wanted += blocks.block_bytes(m);
        }
        EXPECT_EQ(hosts.num_bytes(last, to), wanted) << to;
        EXPECT_EQ(hosts.num_bytes(to, to + 1), count * 4) << to;
      }
    }
  }
}

// Oracle of the bytes: each host sends its values of another one's part, and the sums of its own.
TEST(HostCollectives, SumsOfOneMemberOnEachHost_HaveTheBitsOfRankOrderAndTheBytesOfPairs) {
  constexpr int64_t kCount = 300'001;  // of fp32 two pieces
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    SCOPED_TRACE(name(dtype));
    std::vector<Bytes> data = inputs(dtype, kCount, 3);
    const Bytes want = sum_of(data, dtype);
    const std::vector<int64_t> widths{kCount - 100'000, 0, 100'000};
    const Blocks blocks(1, widths, item_bytes(dtype));
    SimulatedHosts scattering({1, 1, 1});
    scattering.run([&](HostLinks& links, int member) {
      Bytes own(static_cast<size_t>(blocks.block_bytes(member))), part(own.size());
      host_reduce_scatter(links, sum(Op::kReduceScatter, dtype, 1), blocks,
                          {data[static_cast<size_t>(member)].data(), own.data()});
      blocks.pack(want.data(), member, 0, part);
      EXPECT_TRUE(own == part) << member;
    });
    SimulatedHosts reducing({1, 1, 1});
    reducing.run([&](HostLinks& links, int member) {
      Bytes& own = data[static_cast<size_t>(member)];
      host_all_reduce(links, sum(Op::kAllReduce, dtype, kCount), {own.data(), own.data()});
      EXPECT_TRUE(own == want) << member;
    });
    constexpr double kRounding = 2 * 2 * 3 * 64;  // pieces, exchanges, parts, bytes of a line
    for (const auto& [from, to] : {std::pair{0, 1}, std::pair{0, 2}, std::pair{2, 0}}) {
      EXPECT_EQ(scattering.num_bytes(from, to), blocks.block_bytes(to));
      EXPECT_NEAR(static_cast<double>(reducing.num_bytes(from, to)),
                  static_cast<double>(2 * want.size()) / 3, kRounding);
    }
  }
}

// Oracle: fp64. A sum of n numbers in any order differs from it by at most (n - 1) u times the sum
// of the magnitudes, u = 2^-24, to first order (Higham, Accuracy and Stability, section 4.2).
TEST(HostCollectives, FastSums_AreWithinTheBoundOfAnyOrderAndPassEachByteOnceThroughEachHost) {
  constexpr int64_t kCount = 600'001;  // with one lane several pieces; the last one is short
  auto shapes = kShapes;
  shapes.push_back({1, 1, 1});
  for (const auto& shape : shapes) {
    SCOPED_TRACE(str("hosts of ", shape[0], ", ", shape[1], ", ... members"));
    SimulatedHosts hosts(shape);
    const std::vector<Bytes> in = inputs(DType::kF32, kCount, hosts.num_members());
    std::vector<Bytes> data = in;
    hosts.run([&](HostLinks& links, int member) {
      links.fast_sums = true;
      Bytes& own = data[static_cast<size_t>(member)];
      host_all_reduce(links, sum(Op::kAllReduce, DType::kF32, kCount), {own.data(), own.data()});
    });
    for (const Bytes& got : data) EXPECT_TRUE(got == data[0]);
    const auto at = [](const Bytes& bytes, int64_t i) {
      float value = 0;
      std::memcpy(&value, bytes.data() + i * 4, 4);
      return static_cast<double>(value);
    };
    int64_t num_beyond = 0;
    for (int64_t i = 0; i < kCount; ++i) {
      double exact = 0, magnitude = 0;
      for (const Bytes& one : in) {
        exact += at(one, i);
        magnitude += std::abs(at(one, i));
      }
      const double bound = static_cast<double>(in.size()) * std::ldexp(magnitude, -24);
      if (!(std::abs(at(data[0], i) - exact) <= bound)) ++num_beyond;
    }
    EXPECT_EQ(num_beyond, 0);
    EXPECT_EQ(hosts.num_summed(), hosts.num_hosts() * kCount * 4);
  }
}

// MPI has no bf16, and a maximum has one value in any order.
TEST(HostCollectives, FastSums_LeaveOtherReductionsAsTheyAre) {
  constexpr int64_t kCount = 100'001;
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    SimulatedHosts hosts({2, 2});
    std::vector<Bytes> data = inputs(dtype, kCount, 4);
    Operation operation = sum(Op::kAllReduce, dtype, kCount);
    if (dtype == DType::kF32) operation.reduce_op = ReduceOp::kMax;
    Bytes want(data[0].size());
    void* to = want.data();
    const std::vector<const void*> in{data[0].data(), data[1].data(), data[2].data(),
                                      data[3].data()};
    reduce(in, {&to, 1}, kCount, dtype, operation.reduce_op);
    hosts.run([&](HostLinks& links, int member) {
      links.fast_sums = true;
      Bytes& own = data[static_cast<size_t>(member)];
      host_all_reduce(links, operation, {own.data(), own.data()});
    });
    for (const Bytes& got : data) EXPECT_TRUE(got == want) << name(dtype);
    EXPECT_EQ(hosts.num_summed(), 0);
  }
}

TEST(HostCollectives, AllGather_SendsEachBlockOnceToEachHost) {
  constexpr int64_t kRows = 37;
  for (const auto& shape : kShapes) {
    SCOPED_TRACE(str("hosts of ", shape[0], ", ", shape[1], ", ... members"));
    SimulatedHosts hosts(shape);
    const int n = hosts.num_members();
    std::vector<int64_t> widths;
    for (int m = 0; m < n; ++m) widths.push_back(m == 1 ? 0 : 12001 + m);
    const Blocks blocks(kRows, widths, 4);
    const Bytes want = numbers(DType::kF32, kRows * blocks.whole_row_bytes() / 4, 5);
    hosts.run([&](HostLinks& links, int member) {
      Bytes data(want.size());  // in place: the block is at the begin
      blocks.pack(want.data(), member, 0,
                  {data.data(), static_cast<size_t>(blocks.block_bytes(member))});
      host_all_gather(links, blocks, {data.data(), data.data()});
      EXPECT_TRUE(data == want) << member;
    });
    for (int from = 0; from < hosts.num_hosts(); ++from) {
      int64_t bytes = 0;
      for (int m = hosts.first_of(from); m < hosts.first_of(from + 1); ++m) {
        bytes += blocks.block_bytes(m);
      }
      for (int to = 0; to < hosts.num_hosts(); ++to) {
        EXPECT_EQ(hosts.num_bytes(from, to), from == to ? 0 : bytes) << from << " to " << to;
      }
    }
  }
}

TEST(HostCollectives, Broadcast_SendsTheRootsBytesOnceToEachHost) {
  constexpr int64_t kCount = 300'001;
  for (const auto& shape : kShapes) {
    const int n = SimulatedHosts(shape).num_members();
    for (const int root : {0, n - 1}) {
      SCOPED_TRACE(str("hosts of ", shape[0], ", ", shape[1], ", ... members, root ", root));
      SimulatedHosts hosts(shape);
      const Bytes want = numbers(DType::kF32, kCount, root);
      hosts.run([&](HostLinks& links, int member) {
        Bytes data = numbers(DType::kF32, kCount, member);
        host_broadcast(links, root, data);
        EXPECT_TRUE(data == want) << member;
      });
      const int source = root == 0 ? 0 : hosts.num_hosts() - 1;
      for (int from = 0; from < hosts.num_hosts(); ++from) {
        for (int to = 0; to < hosts.num_hosts(); ++to) {
          EXPECT_EQ(hosts.num_bytes(from, to), from == source && to != source ? kCount * 4 : 0);
        }
      }
    }
  }
}

// Otherwise waits of two threads look like a deadlock cycle of their ranks.
TEST(HostBuffers, UsedByTwoThreadsOfARank_AreKnownToBlockNoneOfThemAlone) {
  const auto segment = SharedSegment::create_private(1);
  const auto endpoint = std::make_shared<RankEndpoint>(
      segment, 0, RankOptions{.timeout_s = 20, .flight_log_folder = ""});
  const std::vector<int> ranks{0};
  HostBuffers first(endpoint, segment->join_group(7, ranks, "a"), 0);
  HostBuffers second(endpoint, segment->join_group(9, ranks, "b"), 0);
  first.publish();
  EXPECT_EQ(segment->rank(0).uses_many_threads.load(), 0U);
  std::thread([&] { second.publish(); }).join();
  EXPECT_EQ(segment->rank(0).uses_many_threads.load(), 1U);
}

TEST(HostLayout, OfUnevenHosts_HasTheLanesOfTheSmallest) {
  const std::vector<int64_t> ids{4, 4, 4, 9, 9};
  const auto layout = HostLayout::make(ids, 4);
  ASSERT_TRUE(layout.has_value());
  EXPECT_EQ(layout->first, (std::vector<int>{0, 3, 5}));
  EXPECT_EQ(layout->host, 1);
  EXPECT_EQ(layout->local, 1);
  EXPECT_EQ(layout->num_lanes, 2);
  EXPECT_TRUE(layout->has_lane());
  EXPECT_FALSE(HostLayout::make(ids, 2)->has_lane());
  EXPECT_TRUE(layout->are_together(0, 2));
  EXPECT_FALSE(layout->are_together(2, 3));
}

TEST(HostLayout, OfOneRankOnEachHost_HasOneLane) {
  const std::vector<int64_t> ids{0, 1, 2};
  const auto layout = HostLayout::make(ids, 1);
  ASSERT_TRUE(layout.has_value());
  EXPECT_EQ(layout->num_hosts(), 3);
  EXPECT_EQ(layout->num_lanes, 1);
}

TEST(HostLayout, OfOneHostOrOfRanksThatAlternate_IsNone) {
  const std::vector<std::vector<int64_t>> cases{{0, 1, 0, 1}, {0, 0, 0}};
  for (const auto& ids : cases) EXPECT_FALSE(HostLayout::make(ids, 0).has_value());
}

TEST(LanePieces, OfAnySize_CoverTheStreamOnce) {
  for (const int64_t size : {0, 1, 63, 64, 65, 1000, 4096}) {
    for (const int lanes : {1, 2, 3}) {
      const LanePieces pieces({100 * 64, 100 * 64 + size}, lanes, 128);
      std::vector<int> seen(static_cast<size_t>(size));
      for (int lane = 0; lane < lanes; ++lane) {
        for (int64_t index = -1; index <= pieces.count(); ++index) {
          const StreamRange range = pieces.at(lane, index);
          for (int64_t at = range.begin; at < range.end; ++at) {
            ++seen[static_cast<size_t>(at - 6400)];
          }
        }
      }
      EXPECT_EQ(seen, std::vector<int>(static_cast<size_t>(size), 1)) << size << ", " << lanes;
    }
  }
}

}  // namespace
}  // namespace cleave::host_collectives_test
