#include "cleave/comm/bootstrap/tcp_rendezvous.h"

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <poll.h>
#include <random>
#include <span>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>
#include <xxhash.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/comm/bootstrap/membership.h"
#include "cleave/comm/shm/segment_layout.h"
#include "cleave/comm/net/tcp.h"
#include "tests/support/level.h"
#include "tests/support/started_job.h"

namespace cleave {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using testing::HasSubstr;

double milliseconds_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

/// A loopback address that no other test process uses.
std::string own_loopback() {
  const int pid = getpid();
  return str("127.", 1 + pid / 65536 % 200, ".", pid / 256 % 256, ".", pid % 256);
}

/// One meeting of ranks that are threads of this test; each sees itself as alone on its host.
class Meeting {
 public:
  explicit Meeting(int num_ranks, double timeout_s = 10) : timeout_s_(timeout_s) {
    static std::atomic<int> next_port{21000};
    const int port = next_port++;
    for (int rank = 0; rank < num_ranks; ++rank) {
      Environment environment;
      environment.rank = rank;
      environment.world_size = num_ranks;
      environment.master_addr = own_loopback();
      environment.master_port = port;
      ranks.push_back(environment);
    }
  }
  ~Meeting() { wait(); }
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  void start(int rank) {
    threads_.emplace_back([this, rank] {
      const auto index = static_cast<size_t>(rank);
      try {
        sockets[index] = rendezvous_hosts(ranks[index], timeout_s_);
      } catch (const Error& error) {
        errors[index] = str(name(error.code()), ": ", error.what());
      }
    });
  }
  void start_all() {
    for (size_t rank = 0; rank < ranks.size(); ++rank) start(static_cast<int>(rank));
  }
  void wait() {
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  [[nodiscard]] HostAddress address() const {
    return *find_address(ranks[0].master_addr, ranks[0].master_port);
  }

  std::vector<Environment> ranks;  // what each is told; may be changed before start()
  std::vector<std::vector<Descriptor>> sockets = std::vector<std::vector<Descriptor>>(8);
  std::vector<std::string> errors = std::vector<std::string>(8);

 private:
  double timeout_s_;
  std::vector<std::thread> threads_;
};

/// Sockets of this process that listen.
int num_listeners() {
  int found = 0;
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    int listens = 0;
    socklen_t size = sizeof(listens);
    const int fd = std::stoi(entry.path().filename());
    found += getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0 && listens != 0;
  }
  return found;
}

/// What one rank writes the other one reads.
void expect_connected(Meeting& meeting, size_t a, size_t b) {
  const std::byte sent{static_cast<unsigned char>(10 * a + b)};
  std::byte got{};
  const auto deadline = deadline_in(5);
  ASSERT_TRUE(send_all(meeting.sockets[a][b].get(), {&sent, 1}, deadline));
  ASSERT_TRUE(receive_all(meeting.sockets[b][a].get(), {&got, 1}, deadline));
  EXPECT_EQ(got, sent) << a << " to " << b;
}

TEST(TcpRendezvous, AllRanks_AreConnectedInPairsAndNothingListensAfterwards) {
  for (const auto& order : {std::vector{0, 1, 2, 3}, {3, 2, 1, 0}, {2, 0, 3, 1}}) {
    Meeting meeting(4);
    for (const int rank : order) meeting.start(rank);
    meeting.wait();
    for (size_t a = 0; a < 4; ++a) {
      ASSERT_EQ(meeting.errors[a], "");
      EXPECT_FALSE(meeting.sockets[a][a].is_open());
      for (size_t b = 0; b < 4; ++b) {
        if (a != b) expect_connected(meeting, a, b);
      }
    }
    EXPECT_EQ(num_listeners(), 0);
  }
}

TEST(TcpRendezvous, NameOfTheHost_IsEnough) {
  Meeting meeting(3);
  for (Environment& rank : meeting.ranks) rank.master_addr = "localhost";
  meeting.start_all();
  meeting.wait();
  for (size_t rank = 0; rank < 3; ++rank) EXPECT_EQ(meeting.errors[rank], "");
}

TEST(TcpRendezvous, StrangersAtThePort_DoNotHoldUpTheRanks) {
  Meeting meeting(3);
  meeting.start(0);
  std::string problem;
  std::vector<Descriptor> strangers;
  for (size_t i = 0; i < 60; ++i) {
    strangers.push_back(connect_until(meeting.address(), deadline_in(5), problem));
    ASSERT_TRUE(strangers.back().is_open()) << problem;
    // Some say nothing, some a little, some much that means nothing; some go at once.
    const std::vector<std::byte> text(i % 4 * 50, std::byte{'x'});
    send_all(strangers.back().get(), text, deadline_in(1));
    if (i % 5 == 0) strangers.back() = Descriptor();
  }
  const auto begin = Clock::now();
  meeting.start(1);
  meeting.start(2);
  meeting.wait();
  for (size_t rank = 0; rank < 3; ++rank) EXPECT_EQ(meeting.errors[rank], "");
  EXPECT_LT(milliseconds_since(begin), 1000);
}

/// Addresses at which sockets of this process listen.
std::vector<std::string> listening_at() {
  std::vector<std::string> found;
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    int listens = 0;
    socklen_t size = sizeof(listens);
    const int fd = std::stoi(entry.path().filename());
    const bool known = getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0;
    if (known && listens != 0) found.push_back(own_address(fd).host());
  }
  return found;
}

// Row N1.
TEST(TcpRendezvous, WhileRanksMeetAtLoopback_TheyListenNowhereElse) {
  Meeting meeting(3);
  meeting.start(0);
  meeting.start(1);
  const auto is_listening = [] { return listening_at().size() >= 2; };
  for (int tries = 0; tries < 5000 && !is_listening(); ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_THAT(listening_at(), testing::Each(testing::StartsWith("127.")));
  EXPECT_TRUE(is_listening());
  meeting.start(2);
  meeting.wait();
  EXPECT_EQ(meeting.errors[0] + meeting.errors[1] + meeting.errors[2], "");
}

// Debian calls a host 127.0.1.1 on itself: other hosts know it elsewhere.
TEST(TcpRendezvous, NameThatIsLoopbackHere_IsListenedForEverywhereWithAWarning) {
  std::string name(256, '\0');
  gethostname(name.data(), name.size() - 1);
  name.resize(name.find('\0'));
  const auto known = find_address(name, 1);
  if (!known || !known->is_loopback()) GTEST_SKIP() << "needs a host whose name is loopback";
  const TestFolder folder;
  std::ofstream(folder / "token") << std::string(40, 't');
  fs::permissions(folder / "token", fs::perms::owner_read | fs::perms::owner_write);
  for (const std::string& token : {std::string(), std::string(folder / "token")}) {
    Meeting meeting(2);
    // Who listens for everywhere must be alone at the port, whatever loopback the others are at.
    const int port = own_address(listen_at(any_address(*known)).get()).port();
    for (Environment& rank : meeting.ranks) {
      rank.master_addr = name;
      rank.master_port = port;
      rank.token_file = token;
    }
    testing::internal::CaptureStderr();
    meeting.start_all();
    meeting.wait();
    const std::string told = testing::internal::GetCapturedStderr();
    EXPECT_EQ(meeting.errors[0] + meeting.errors[1], "");
    EXPECT_EQ(told.find("all interfaces listen while the ranks meet") != std::string::npos,
              token.empty())
        << told;
  }
}

// Row N2: wrong, cut, slow and repeated hellos while ranks meet.
TEST(TcpRendezvous, ManyWrongHellos_AreAllSentAwayAndTheRanksMeet) {
  const TestFolder folder;
  std::ofstream(folder / "token") << std::string(40, 't');
  fs::permissions(folder / "token", fs::perms::owner_read | fs::perms::owner_write);
  Meeting meeting(3, 120);
  for (Environment& rank : meeting.ranks) rank.token_file = folder / "token";
  meeting.start(0);
  const int num_hellos = test::level() == test::Level::kRelease ? 10'000 : 500;
  std::mt19937_64 random(7);
  std::string problem;
  std::vector<Descriptor> strangers;
  for (int i = 0; i < num_hellos; ++i) {
    Descriptor stranger = connect_until(meeting.address(), deadline_in(20), problem);
    ASSERT_TRUE(stranger.is_open()) << problem;
    // The right first word, then a wrong token, whole or cut; or noise; or silence.
    std::vector<std::byte> hello(sizeof(uint64_t) + 32);
    for (std::byte& byte : hello) byte = static_cast<std::byte>(random());
    if (i % 4 != 0) std::memcpy(hello.data(), &kJobMagic, sizeof(kJobMagic));
    hello.resize(random() % 3 == 0 ? random() % (hello.size() + 1) : hello.size());
    send_all(stranger.get(), hello, deadline_in(5));
    if (i % 2 == 0) strangers.push_back(std::move(stranger));
    if (strangers.size() > 300) strangers.erase(strangers.begin());
  }
  const auto begin = Clock::now();
  meeting.start(1);
  meeting.start(2);
  meeting.wait();
  for (size_t rank = 0; rank < 3; ++rank) EXPECT_EQ(meeting.errors[rank], "");
  test::note_measured("N2 ", num_hellos, " wrong hellos sent away, the ranks then met in ",
                      milliseconds_since(begin), " ms");
}

TEST(TcpRendezvous, OtherToken_IsNotLetIn) {
  const TestFolder folder;
  for (const char* name : {"ours", "theirs"}) {
    std::ofstream(folder / name) << std::string(40, name[0]);
    fs::permissions(folder / name, fs::perms::owner_read | fs::perms::owner_write);
  }
  Meeting meeting(3, 0.5);
  for (Environment& rank : meeting.ranks) rank.token_file = folder / "ours";
  meeting.ranks[2].token_file = folder / "theirs";
  meeting.start_all();
  meeting.wait();
  EXPECT_THAT(meeting.errors[0], HasSubstr("rank(s) 2 of 3 did not join"));
  EXPECT_THAT(meeting.errors[0], HasSubstr("1 came with another CLEAVE_TOKEN_FILE"));
  EXPECT_THAT(meeting.errors[1], HasSubstr("rank(s) 2 of 3 did not join"));
  EXPECT_THAT(meeting.errors[2], HasSubstr("has another CLEAVE_TOKEN_FILE"));

  Meeting agreed(2);
  for (Environment& rank : agreed.ranks) rank.token_file = folder / "ours";
  agreed.start_all();
  agreed.wait();
  EXPECT_EQ(agreed.errors[0] + agreed.errors[1], "");
}

TEST(TcpRendezvous, TokenThatOthersMayReadOrThatIsShort_IsRefused) {
  const TestFolder folder;
  std::ofstream(folder / "open") << std::string(40, 'x');
  fs::permissions(folder / "open", fs::perms::owner_all | fs::perms::group_read);
  std::ofstream(folder / "short") << "1234";
  fs::permissions(folder / "short", fs::perms::owner_read);
  Meeting meeting(3, 0.3);
  meeting.ranks[0].token_file = folder / "open";
  meeting.start(0);
  meeting.wait();
  EXPECT_THAT(meeting.errors[0], HasSubstr("has mode 740; others may not read it"));
  meeting.ranks[0].token_file = folder / "short";
  meeting.start(0);
  meeting.wait();
  EXPECT_THAT(meeting.errors[0], HasSubstr("holds 4 bytes; it must hold 32 or more"));
}

TEST(TcpRendezvous, PortOfAnotherProgram_IsToldSoon) {
  Meeting meeting(2);
  EXPECT_EQ(num_listeners(), 0);
  const Descriptor other = listen_at(meeting.address());
  ASSERT_TRUE(other.is_open());
  EXPECT_EQ(num_listeners(), 1);  // of those that AllRanks_ counts
  const auto begin = Clock::now();
  meeting.start(0);
  meeting.wait();
  EXPECT_THAT(meeting.errors[0], HasSubstr(str(" is held by pid ", getpid(), " (comm_test); ")));
  EXPECT_LT(milliseconds_since(begin), 1000);  // 100 on a quiet machine
  test::note_measured("N3 a taken port is told after ", milliseconds_since(begin), " ms");
}

TEST(TcpRendezvous, RankOfAnotherJob_IsSentAwayAndTheJobGoesOn) {
  Meeting meeting(2), other(2);
  for (Environment& rank : other.ranks) {
    rank.master_port = meeting.ranks[0].master_port;
    rank.job_id = "other";
  }
  meeting.start(0);
  other.start(1);
  other.wait();
  EXPECT_THAT(other.errors[1], HasSubstr("another job meets at"));
  other.start(0);  // finds the port taken, and by whom
  other.wait();
  EXPECT_THAT(other.errors[0], HasSubstr("another job meets at"));
  meeting.start(1);
  meeting.wait();
  EXPECT_EQ(meeting.errors[0] + meeting.errors[1], "");
}

TEST(TcpRendezvous, WithoutAMeetingPlace_TheVariablesAreNamed) {
  Meeting meeting(2, 0.3);
  meeting.ranks[1].master_addr = "";
  meeting.start(1);
  meeting.wait();
  EXPECT_THAT(meeting.errors[1], HasSubstr("usage: "));
  EXPECT_THAT(meeting.errors[1], HasSubstr("need MASTER_ADDR"));
}

TEST(TcpRendezvous, AddressOfAnotherHost_IsRefusedOnRankZero) {
  Meeting meeting(2, 0.3);
  meeting.ranks[0].master_addr = "192.0.2.1";  // for documentation: no host has it
  meeting.start(0);
  meeting.wait();
  EXPECT_THAT(meeting.errors[0], HasSubstr("MASTER_ADDR must be an address of the host of rank 0"));
}

TEST(TcpRendezvous, NameThatNobodyKnows_IsToldAtTheTimeout) {
  Meeting meeting(2, 0.1);
  const std::string name(64, 'x');  // too long for a name server to be asked
  meeting.ranks[1].master_addr = name;
  meeting.start(1);
  meeting.wait();
  EXPECT_THAT(meeting.errors[1],
              HasSubstr("timeout: MASTER_ADDR=" + name + " is not known on this host"));
}

// A rank by hand: what travels, as tcp_rendezvous.cc describes it.

using Token = std::array<std::byte, 32>;

struct AuthRequest {
  uint64_t magic;
  Token token;
};

struct Endpoint {
  uint32_t size;
  int32_t port;
  std::byte address[28];
};

struct Greeting {
  Hello hello;
  uint64_t job;
  Endpoint endpoint;
};

struct Answer {
  uint64_t magic;
  int32_t code;
  char text[kAbortTextBytes];
};

template <class T>
void tell(const Descriptor& socket, const T& value) {
  EXPECT_TRUE(send_all(socket.get(), std::as_bytes(std::span(&value, 1)), deadline_in(5)));
}

template <class T>
T hear(const Descriptor& socket) {
  T value{};
  EXPECT_TRUE(
      receive_all(socket.get(), std::as_writable_bytes(std::span(&value, 1)), deadline_in(10)));
  return value;
}

Descriptor connected(const HostAddress& address) {
  std::string problem;
  Descriptor socket = connect_until(address, deadline_in(5), problem);
  EXPECT_TRUE(socket.is_open()) << problem;
  return socket;
}

/// A connection to rank 0 over which the rank has said who it is.
Descriptor greet(const Meeting& meeting, int rank, const Endpoint& endpoint = {}) {
  Descriptor zero = connected(meeting.address());
  const std::string& job = meeting.ranks[0].job_id;
  tell(zero, AuthRequest{kJobMagic, {}});
  tell(zero, Greeting{{kJobMagic, rank, static_cast<int32_t>(meeting.ranks.size()), getpid()},
                      XXH3_64bits(job.data(), job.size()),
                      endpoint});
  return zero;
}

/// What rank 0 tells when all have come.
struct Table {
  Token key;
  std::array<Endpoint, 3> endpoints;
};

Table hear_table(const Descriptor& zero) {
  EXPECT_EQ(hear<Answer>(zero).code, 0);
  const auto key = hear<Token>(zero);
  return {key, hear<std::array<Endpoint, 3>>(zero)};
}

TEST(TcpRendezvous, RankThatEndsWhileTheyMeet_IsToldToTheOthers) {
  for (const int num_ranks : {3, 2}) {  // of two it is the last one: all have come when it goes
    Meeting meeting(num_ranks);
    meeting.start(0);
    { const Descriptor gone = greet(meeting, 1); }
    meeting.wait();
    EXPECT_THAT(meeting.errors[0], HasSubstr(str("peer: rank 1 (pid ", getpid(), " at ")));
    EXPECT_THAT(meeting.errors[0], HasSubstr(") ended while the ranks were meeting"));
  }
}

TEST(TcpRendezvous, RankThatDoesNotConnectToAnotherOne_IsToldToAll) {
  Meeting meeting(3, 1);
  meeting.start(0);
  meeting.start(1);
  const Descriptor zero = greet(meeting, 2);
  hear_table(zero);
  const auto outcome = hear<Answer>(zero);
  meeting.wait();
  EXPECT_EQ(outcome.code, static_cast<int32_t>(Code::kTimeout));
  for (const std::string& text : {std::string(outcome.text), meeting.errors[0], meeting.errors[1]})
    EXPECT_THAT(text, HasSubstr("rank 2 has not connected to rank 1 at "));
}

TEST(TcpRendezvous, RankThatCannotBeReached_IsToldToAll) {
  Meeting meeting(3, 1);
  meeting.start(0);
  meeting.start(2);
  const Descriptor zero = greet(meeting, 1, {0, 1, {}});  // on this host, at port 1
  hear_table(zero);
  const auto outcome = hear<Answer>(zero);
  meeting.wait();
  EXPECT_EQ(outcome.code, static_cast<int32_t>(Code::kTimeout));
  for (const std::string& text : {std::string(outcome.text), meeting.errors[0], meeting.errors[2]})
    EXPECT_THAT(text, testing::ContainsRegex("rank 2 cannot reach rank 1 at .*:1 "
                                             "\\(Connection refused\\); let the hosts "));
}

/// Whether the other side ends this connection soon, and without a word.
bool is_sent_away(const Descriptor& socket) {
  pollfd state{socket.get(), POLLIN, 0};
  std::byte word{};
  if (poll(&state, 1, 5000) != 1) return false;
  const ssize_t got = recv(socket.get(), &word, 1, 0);
  return got == 0 || (got < 0 && errno == ECONNRESET);
}

TEST(TcpRendezvous, StrangerWhoConnectsToARankThatIsNotZero_IsNotLetIn) {
  Meeting meeting(3);
  meeting.start(0);
  meeting.start(1);
  const Descriptor zero = greet(meeting, 2);
  const Table table = hear_table(zero);
  const Endpoint& endpoint = table.endpoints[1];
  sockaddr_storage raw{};
  std::memcpy(&raw, endpoint.address, endpoint.size);
  HostAddress one(reinterpret_cast<const sockaddr*>(&raw), endpoint.size);
  one.set_port(endpoint.port);
  Token wrong = table.key;
  wrong.back() ^= std::byte{1};
  for (const auto& [knock, rank] : {std::pair(AuthRequest{kJobMagic, wrong}, 2),
                                    {AuthRequest{kJobMagic + 1, table.key}, 2},
                                    {AuthRequest{kJobMagic, table.key}, 1},
                                    {AuthRequest{kJobMagic, table.key}, 3}}) {
    const Descriptor stranger = connected(one);
    tell(stranger, knock);
    tell(stranger, rank);
    EXPECT_TRUE(is_sent_away(stranger));
  }
  meeting.sockets[2].resize(2);
  meeting.sockets[2][1] = connected(one);
  tell(meeting.sockets[2][1], AuthRequest{kJobMagic, table.key});
  tell(meeting.sockets[2][1], 2);
  tell(zero, Answer{kJobMagic, 0, ""});
  EXPECT_EQ(hear<Answer>(zero).code, 0);
  meeting.wait();
  ASSERT_EQ(meeting.errors[0] + meeting.errors[1], "");
  expect_connected(meeting, 1, 2);
}

// The same as processes, each of which sees itself as alone on its host.

/// What such a process is told beside its rank.
std::vector<std::string> alone(int port) {
  return {"LOCAL_WORLD_SIZE=1", "MASTER_ADDR=" + own_loopback(), str("MASTER_PORT=", port)};
}

TEST(TcpRendezvous, ProcessesOfSeveralHosts_MeetAndLeaveNothing) {
  test::StartedJob job;
  for (const int rank : {2, 0, 1}) job.start(rank, 3, alone(22000));
  EXPECT_EQ(job.wait(), std::vector<int>(3, 0)) << job.errors(0) << job.errors(1);
  EXPECT_TRUE(job.is_clean());
}

TEST(TcpRendezvous, RankKilledOnAnotherHost_StopsTheOthersWithItsPlace) {
  test::StartedJob job;
  auto variables = alone(22001);
  variables.emplace_back("CLEAVE_TEST_DIES=1");
  for (int rank = 0; rank < 3; ++rank) job.start(rank, 3, variables);
  EXPECT_EQ(job.wait(), (std::vector<int>{6, 137, 6}));
  for (const size_t rank : {0U, 2U}) {
    EXPECT_THAT(job.errors(rank), HasSubstr("rank 1 (pid "));
    EXPECT_THAT(job.errors(rank), HasSubstr(" at 127.0.0.1) died, last seen "));
    EXPECT_THAT(job.errors(rank), HasSubstr(str("rank ", rank, " stopped in barrier 2")));
  }
}

TEST(TcpRendezvous, WorldSizesThatDiffer_AreToldToAllRanks) {
  test::StartedJob job;
  job.start(0, 3, alone(22002));
  job.start(1, 2, alone(22002));
  job.start(2, 3, alone(22002));
  EXPECT_EQ(job.wait(), std::vector<int>(3, 3));
  for (size_t rank = 0; rank < 3; ++rank) {
    EXPECT_THAT(job.errors(rank), HasSubstr("rank 0 has world size 3, rank 1 (pid "));
  }
}

TEST(TcpRendezvous, DoubledRanks_AreToldToAllRanks) {
  for (const int doubled : {0, 1}) {
    test::StartedJob job;
    job.start(0, 3, alone(22003 + doubled));
    job.start(1, 3, alone(22003 + doubled));
    job.start(doubled, 3, alone(22003 + doubled));
    EXPECT_EQ(job.wait(), std::vector<int>(3, 3)) << doubled;
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_THAT(job.errors(i), HasSubstr(str("rank ", doubled, " is claimed by pid ")));
    }
  }
}

TEST(TcpRendezvous, MissingRanks_AreListedToAllAtTheTimeout) {
  test::StartedJob job(0.6);
  const auto begin = Clock::now();
  job.start(0, 4, alone(22005));
  job.start(2, 4, alone(22005));
  EXPECT_EQ(job.wait(), std::vector<int>(2, 7));
  EXPECT_LT(milliseconds_since(begin), 1500);
  EXPECT_THAT(job.errors(0), HasSubstr("rank(s) 1, 3 of 4 did not join"));
  EXPECT_THAT(job.errors(1), HasSubstr("did not join"));
}

}  // namespace
}  // namespace cleave
