#include "cleave/comm/page_mirror.h"

#include <cerrno>
#include <memory>
#include <optional>
#include <sys/socket.h>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/comm/frame.h"
#include "cleave/comm/page_world.h"
#include "tests/support/thrown.h"

namespace cleave {
namespace {

using testing::HasSubstr;

/// Rank 0 of two hosts' ranks; the test is the other one and says what it likes.
struct LonelyRank {
  LonelyRank() {
    int ends[2] = {-1, -1};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    other = Descriptor(ends[1]);
    std::vector<Descriptor> sockets(2);
    sockets[1] = Descriptor(ends[0]);
    world.emplace(page, 0, RankOptions{.timeout_s = 20, .flight_log_folder = ""},
                  std::make_unique<PageMirror>(page, 0, std::move(sockets), 20));
  }
  Error barrier() {
    return test::thrown_by([&] {
      world->group({0, 1}, "all")->barrier({.site = "s", .shape = {}});
    });
  }
  /// Whether the other end of the connection is closed after what was still on its way.
  bool is_closed() {
    std::vector<std::byte> bytes(4096);
    ssize_t got = 0;
    while ((got = recv(other.get(), bytes.data(), bytes.size(), 0)) > 0) continue;
    return got == 0 || errno == ECONNRESET;
  }
  std::shared_ptr<JobPage> page = JobPage::create_mirror(2, 0);
  Descriptor other;
  std::optional<PageWorld> world;
};

TEST(PageMirror, BytesThatAreNoFrame_StopTheJobAndEndTheConnection) {
  LonelyRank rank;
  const std::vector<std::byte> garbage(sizeof(Frame), std::byte{0x7f});
  ASSERT_EQ(send(rank.other.get(), garbage.data(), garbage.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(garbage.size()));
  EXPECT_THAT(rank.barrier().what(), HasSubstr("rank 1 sent a frame of "));
  const auto cause = rank.page->aborted();
  ASSERT_TRUE(cause.has_value());
  EXPECT_EQ(cause->code, Code::kFormat);
  EXPECT_EQ(cause->rank, 1);
  EXPECT_TRUE(rank.is_closed());
}

TEST(PageMirror, ConnectionThatEndsInAFrame_IsAPeerThatDied) {
  LonelyRank rank;
  const std::vector<std::byte> part(sizeof(Frame) / 2);
  ASSERT_EQ(send(rank.other.get(), part.data(), part.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(part.size()));
  rank.other = Descriptor();
  EXPECT_THAT(rank.barrier().what(), HasSubstr(") died, last seen not yet there"));
  EXPECT_EQ(rank.page->aborted()->code, Code::kPeer);
}

}  // namespace
}  // namespace cleave
