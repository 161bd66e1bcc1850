#include "cleave/comm/net/tcp_replicator.h"

#include <cerrno>
#include <memory>
#include <optional>
#include <sys/socket.h>
#include <tuple>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/comm/net/frame.h"
#include "cleave/comm/net/tcp.h"
#include "cleave/comm/shm/shm_world.h"
#include "tests/support/thrown.h"

namespace cleave::tcp_replicator_test {
namespace {

using testing::HasSubstr;

/// Both ends of a TCP connection.
std::pair<Descriptor, Descriptor> connected_pair() {
  const Descriptor listener = listen_at(*find_address("127.0.0.1", 0));
  std::string problem;
  Descriptor one = connect_until(own_address(listener.get()), deadline_in(10), problem);
  EXPECT_TRUE(one.is_open()) << problem;
  Descriptor other(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  return {std::move(one), std::move(other)};
}

/// Rank 0 of two ranks on two hosts. The test plays rank 1 over a raw socket.
struct RankZero {
  RankZero() {
    std::vector<Descriptor> sockets(2);
    std::tie(sockets[1], other) = connected_pair();
    world.emplace(segment, 0, RankOptions{.timeout_s = 20, .flight_log_folder = ""},
                  std::make_unique<TcpReplicator>(segment, 0, std::move(sockets), 20), nullptr);
  }
  Error barrier() {
    return test::thrown_by([&] {
      world->group({0, 1}, "all")->barrier({.site = "s", .shape = {}});
    });
  }
  /// Whether rank 0 closes the connection, after the data that was in flight.
  bool is_closed() {
    std::vector<std::byte> bytes(4096);
    ssize_t got = 0;
    while ((got = recv(other.get(), bytes.data(), bytes.size(), 0)) > 0) continue;
    return got == 0 || errno == ECONNRESET;
  }
  std::shared_ptr<SharedSegment> segment = SharedSegment::create_replica(2, 0);
  Descriptor other;
  std::optional<ShmWorld> world;
};

TEST(TcpReplicator, InvalidFrame_StopsTheJobAndClosesTheConnection) {
  RankZero rank;
  const std::vector<std::byte> garbage(sizeof(Frame), std::byte{0x7f});
  ASSERT_EQ(send(rank.other.get(), garbage.data(), garbage.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(garbage.size()));
  EXPECT_THAT(rank.barrier().what(), HasSubstr("rank 1 sent a frame of "));
  const auto cause = rank.segment->aborted();
  ASSERT_TRUE(cause.has_value());
  EXPECT_EQ(cause->code, Code::kFormat);
  EXPECT_EQ(cause->rank, 1);
  EXPECT_TRUE(rank.is_closed());
}

TEST(TcpReplicator, ConnectionThatEndsInAFrame_IsAPeerThatDied) {
  RankZero rank;
  const std::vector<std::byte> part(sizeof(Frame) / 2);
  ASSERT_EQ(send(rank.other.get(), part.data(), part.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(part.size()));
  rank.other = Descriptor();
  EXPECT_THAT(rank.barrier().what(),
              HasSubstr("rank 1 (at 127.0.0.1) died right after the rendezvous"));
  EXPECT_EQ(rank.segment->aborted()->code, Code::kPeer);
}

// Row N6: a firewall or a rebooted host resets connections.
TEST(TcpReplicator, ConnectionThatIsReset_IsAPeerThatDied) {
  RankZero rank;
  const linger reset{.l_onoff = 1, .l_linger = 0};  // close() sends RST
  ASSERT_EQ(setsockopt(rank.other.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof(reset)), 0);
  rank.other = Descriptor();
  EXPECT_THAT(rank.barrier().what(),
              HasSubstr("rank 1 (at 127.0.0.1) died right after the rendezvous"));
  EXPECT_EQ(rank.segment->aborted()->code, Code::kPeer);
}

}  // namespace
}  // namespace cleave::tcp_replicator_test
