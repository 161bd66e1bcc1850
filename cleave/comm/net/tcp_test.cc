#include "cleave/comm/net/tcp.h"

#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/base/error.h"

namespace cleave::tcp_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

HostAddress address(const std::string& text, int port = 0) {
  return find_address(text, port).value();
}

TEST(HostAddress, Ipv4AndIpv6_AreParsedAndFormatted) {
  EXPECT_EQ(address("10.1.2.3", 29500).text(), "10.1.2.3:29500");
  EXPECT_EQ(address("fe80::1", 65535).text(), "[fe80::1]:65535");
  EXPECT_EQ(address("::1", 7).port(), 7);
  EXPECT_EQ(HostAddress().host(), "");
  EXPECT_EQ(own_address(-1).host(), "");
  EXPECT_EQ(peer_address(-1).host(), "");
  EXPECT_TRUE(is_numeric_address("::1"));
  EXPECT_FALSE(is_numeric_address("localhost"));
}

TEST(HostAddress, LoopbackOfIpv4AndIpv6_IsRecognized) {
  for (const char* digits : {"127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"}) {
    EXPECT_TRUE(address(digits).is_loopback()) << digits;
  }
  for (const char* digits : {"10.0.0.1", "128.0.0.1", "12.7.0.1", "::2", "::ffff:10.0.0.1"}) {
    EXPECT_FALSE(address(digits).is_loopback()) << digits;
  }
}

TEST(AnyAddress, OfIpv4AndIpv6_IsAllZeros) {
  EXPECT_EQ(any_address(address("10.0.0.1", 5)).text(), "0.0.0.0:0");
  EXPECT_EQ(any_address(address("::1", 5)).text(), "[::]:0");
}

/// Both ends of a local connection.
struct Pair {
  Pair() {
    const Descriptor listener = listen_at(address("127.0.0.1"));
    std::string problem;
    one = connect_until(own_address(listener.get()), deadline_in(5), problem);
    other = accept_from(listener.get());
    EXPECT_TRUE(one.is_open() && other.is_open()) << problem;
  }
  Descriptor one, other;
};

TEST(ReceiveAll, PassedDeadline_EndsTheWait) {
  const Pair pair;
  std::vector<std::byte> bytes(4);
  EXPECT_TRUE(send_all(pair.one.get(), std::span(bytes).first(3), deadline_in(5)));
  for (const double seconds : {-1.0, 0.0, 0.05}) {
    EXPECT_FALSE(receive_all(pair.other.get(), bytes, deadline_in(seconds)));
  }
}

TEST(SendAll, PeerThatReadsNothing_EndsAtTheDeadline) {
  Pair pair;
  const std::vector<std::byte> bytes(64 << 20);  // more than the socket buffers hold
  EXPECT_FALSE(send_all(pair.one.get(), bytes, deadline_in(0.05)));
  pair.other = Descriptor();
  EXPECT_FALSE(send_all(pair.one.get(), bytes, deadline_in(5)));
}

TEST(ListenAt, AddressOfAnotherHost_IsAnErrorAndATakenPortIsNot) {
  try {
    listen_at(address("203.0.113.1"));  // reserved for documentation (RFC 5737): no host has it
    ADD_FAILURE() << "listens";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kIo);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("203.0.113.1:0"), HasSubstr("MASTER_ADDR")));
  }
  const Descriptor listener = listen_at(address("127.0.0.1"));
  EXPECT_FALSE(listen_at(own_address(listener.get())).is_open());
}

TEST(ConnectUntil, PortWithoutAListener_IsReportedAtTheDeadline) {
  HostAddress free;
  {
    const Descriptor listener = listen_at(address("127.0.0.1"));
    free = own_address(listener.get());
  }
  std::string problem;
  EXPECT_FALSE(connect_until(free, deadline_in(0.05), problem).is_open());
  EXPECT_EQ(problem, "Connection refused");
}

}  // namespace
}  // namespace cleave::tcp_test
