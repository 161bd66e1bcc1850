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
#include "cleave/comm/bootstrap/rendezvous.h"
#include "cleave/comm/bootstrap/rendezvous_protocol.h"
#include "cleave/comm/net/tcp.h"
#include "cleave/comm/shm/segment_layout.h"
#include "tests/support/level.h"
#include "tests/support/started_job.h"

namespace cleave::tcp_rendezvous_test {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using test::milliseconds_since;
using testing::HasSubstr;

/// A loopback address that no other test process uses.
std::string own_loopback() {
  const int pid = getpid();
  return str("127.", 1 + pid / 65536 % 200, ".", pid / 256 % 256, ".", pid % 256);
}

/// One job whose ranks are threads of this test. Each rank sees itself as the only one on its host.
class Job {
 public:
  explicit Job(int num_ranks, double timeout_s = 10) : timeout_s_(timeout_s) {
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
  ~Job() { wait(); }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

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

  std::vector<Environment> ranks;  // each rank's environment; may be changed before start()
  std::vector<std::vector<Descriptor>> sockets = std::vector<std::vector<Descriptor>>(8);
  std::vector<std::string> errors = std::vector<std::string>(8);

 private:
  double timeout_s_;
  std::vector<std::thread> threads_;
};

/// Number of listening sockets of this process.
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

/// Expects that rank b reads what rank a writes.
void expect_connected(Job& job, size_t a, size_t b) {
  const std::byte sent{static_cast<unsigned char>(10 * a + b)};
  std::byte got{};
  const auto deadline = deadline_in(5);
  ASSERT_TRUE(send_all(job.sockets[a][b].get(), {&sent, 1}, deadline));
  ASSERT_TRUE(receive_all(job.sockets[b][a].get(), {&got, 1}, deadline));
  EXPECT_EQ(got, sent) << a << " to " << b;
}

TEST(TcpRendezvous, AllRanks_AreConnectedInPairsAndNothingListensAfterwards) {
  for (const auto& order : {std::vector{0, 1, 2, 3}, {3, 2, 1, 0}, {2, 0, 3, 1}}) {
    Job job(4);
    for (const int rank : order) job.start(rank);
    job.wait();
    for (size_t a = 0; a < 4; ++a) {
      ASSERT_EQ(job.errors[a], "");
      EXPECT_FALSE(job.sockets[a][a].is_open());
      for (size_t b = 0; b < 4; ++b) {
        if (a != b) expect_connected(job, a, b);
      }
    }
    EXPECT_EQ(num_listeners(), 0);
  }
}

TEST(TcpRendezvous, NameOfTheHost_IsEnough) {
  Job job(3);
  for (Environment& rank : job.ranks) rank.master_addr = "localhost";
  job.start_all();
  job.wait();
  for (size_t rank = 0; rank < 3; ++rank) EXPECT_EQ(job.errors[rank], "");
}

TEST(TcpRendezvous, UnauthenticatedPeers_DoNotDelayTheRanks) {
  Job job(3);
  job.start(0);
  std::string problem;
  std::vector<Descriptor> peers;
  for (size_t i = 0; i < 60; ++i) {
    peers.push_back(connect_until(job.address(), deadline_in(5), problem));
    ASSERT_TRUE(peers.back().is_open()) << problem;
    // Some send nothing, some too little, some garbage; some close the connection immediately.
    const std::vector<std::byte> text(i % 4 * 50, std::byte{'x'});
    send_all(peers.back().get(), text, deadline_in(1));
    if (i % 5 == 0) peers.back() = Descriptor();
  }
  const auto begin = Clock::now();
  job.start(1);
  job.start(2);
  job.wait();
  for (size_t rank = 0; rank < 3; ++rank) EXPECT_EQ(job.errors[rank], "");
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
TEST(TcpRendezvous, RendezvousOverLoopback_ListensNowhereElse) {
  Job job(3);
  job.start(0);
  job.start(1);
  const auto is_listening = [] { return listening_at().size() >= 2; };
  for (int tries = 0; tries < 5000 && !is_listening(); ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_THAT(listening_at(), testing::Each(testing::StartsWith("127.")));
  EXPECT_TRUE(is_listening());
  job.start(2);
  job.wait();
  EXPECT_EQ(job.errors[0] + job.errors[1] + job.errors[2], "");
}

// Debian resolves a host's own name to 127.0.1.1; other hosts resolve it to another address.
TEST(TcpRendezvous, NameThatIsLoopbackHere_ListensOnAllInterfacesWithAWarning) {
  std::string name(256, '\0');
  gethostname(name.data(), name.size() - 1);
  name.resize(name.find('\0'));
  const auto known = find_address(name, 1);
  if (!known || !known->is_loopback()) GTEST_SKIP() << "needs a host whose name is loopback";
  const TestFolder folder;
  std::ofstream(folder / "token") << std::string(40, 't');
  fs::permissions(folder / "token", fs::perms::owner_read | fs::perms::owner_write);
  for (const std::string& token : {std::string(), std::string(folder / "token")}) {
    Job job(2);
    // A listener on all interfaces needs a port that no other test uses on any loopback address.
    const int port = own_address(listen_at(any_address(*known)).get()).port();
    for (Environment& rank : job.ranks) {
      rank.master_addr = name;
      rank.master_port = port;
      rank.token_file = token;
    }
    testing::internal::CaptureStderr();
    job.start_all();
    job.wait();
    const std::string warning = testing::internal::GetCapturedStderr();
    EXPECT_EQ(job.errors[0] + job.errors[1], "");
    EXPECT_EQ(warning.find("listens on all interfaces during rendezvous") != std::string::npos,
              token.empty())
        << warning;
  }
}

// Row N2: invalid, truncated, slow and repeated requests during rendezvous.
TEST(TcpRendezvous, InvalidAuthRequests_AreRejectedAndTheRanksJoin) {
  const TestFolder folder;
  std::ofstream(folder / "token") << std::string(40, 't');
  fs::permissions(folder / "token", fs::perms::owner_read | fs::perms::owner_write);
  Job job(3, 120);
  for (Environment& rank : job.ranks) rank.token_file = folder / "token";
  job.start(0);
  const int num_requests = test::level() == test::Level::kRelease ? 10'000 : 500;
  std::mt19937_64 random(7);
  std::string problem;
  std::vector<Descriptor> peers;
  for (int i = 0; i < num_requests; ++i) {
    Descriptor peer = connect_until(job.address(), deadline_in(20), problem);
    ASSERT_TRUE(peer.is_open()) << problem;
    // The right magic number with a wrong token, whole or truncated; or noise; or silence.
    std::vector<std::byte> request(sizeof(uint64_t) + 32);
    for (std::byte& byte : request) byte = static_cast<std::byte>(random());
    if (i % 4 != 0) std::memcpy(request.data(), &kJobMagic, sizeof(kJobMagic));
    request.resize(random() % 3 == 0 ? random() % (request.size() + 1) : request.size());
    send_all(peer.get(), request, deadline_in(5));
    if (i % 2 == 0) peers.push_back(std::move(peer));
    if (peers.size() > 300) peers.erase(peers.begin());
  }
  const auto begin = Clock::now();
  job.start(1);
  job.start(2);
  job.wait();
  for (size_t rank = 0; rank < 3; ++rank) EXPECT_EQ(job.errors[rank], "");
  test::note_measured("N2 ", num_requests, " invalid requests rejected, the ranks then joined in ",
                      milliseconds_since(begin), " ms");
}

TEST(TcpRendezvous, OtherToken_IsRejected) {
  const TestFolder folder;
  for (const char* name : {"ours", "theirs"}) {
    std::ofstream(folder / name) << std::string(40, name[0]);
    fs::permissions(folder / name, fs::perms::owner_read | fs::perms::owner_write);
  }
  Job job(3, 0.5);
  for (Environment& rank : job.ranks) rank.token_file = folder / "ours";
  job.ranks[2].token_file = folder / "theirs";
  job.start_all();
  job.wait();
  EXPECT_THAT(job.errors[0], HasSubstr("rank(s) 2 of 3 did not join"));
  EXPECT_THAT(job.errors[0], HasSubstr("1 connected with another CLEAVE_TOKEN_FILE"));
  EXPECT_THAT(job.errors[1], HasSubstr("rank(s) 2 of 3 did not join"));
  EXPECT_THAT(job.errors[2], HasSubstr("has another CLEAVE_TOKEN_FILE"));

  Job same(2);
  for (Environment& rank : same.ranks) rank.token_file = folder / "ours";
  same.start_all();
  same.wait();
  EXPECT_EQ(same.errors[0] + same.errors[1], "");
}

TEST(TcpRendezvous, TokenThatOthersMayReadOrThatIsShort_IsRefused) {
  const TestFolder folder;
  std::ofstream(folder / "open") << std::string(40, 'x');
  fs::permissions(folder / "open", fs::perms::owner_all | fs::perms::group_read);
  std::ofstream(folder / "short") << "1234";
  fs::permissions(folder / "short", fs::perms::owner_read);
  Job job(3, 0.3);
  job.ranks[0].token_file = folder / "open";
  job.start(0);
  job.wait();
  EXPECT_THAT(job.errors[0], HasSubstr("has mode 740; others may not read it"));
  job.ranks[0].token_file = folder / "short";
  job.start(0);
  job.wait();
  EXPECT_THAT(job.errors[0], HasSubstr("holds 4 bytes; it must hold 32 or more"));
}

TEST(TcpRendezvous, PortOfAnotherProgram_IsReportedSoon) {
  Job job(2);
  EXPECT_EQ(num_listeners(), 0);
  const Descriptor other = listen_at(job.address());
  ASSERT_TRUE(other.is_open());
  EXPECT_EQ(num_listeners(), 1);  // shows that num_listeners() works
  const auto begin = Clock::now();
  job.start(0);
  job.wait();
  EXPECT_THAT(job.errors[0], HasSubstr(" is used by another program; choose another port"));
  EXPECT_LT(milliseconds_since(begin), 1000);  // 100 on a quiet machine
  test::note_measured("N3 a taken port is reported after ", milliseconds_since(begin), " ms");
}

TEST(TcpRendezvous, RankOfAnotherJob_IsRejectedAndTheJobContinues) {
  Job job(2), other(2);
  for (Environment& rank : other.ranks) {
    rank.master_port = job.ranks[0].master_port;
    rank.job_id = "other";
  }
  job.start(0);
  other.start(1);
  other.wait();
  EXPECT_THAT(other.errors[1], HasSubstr("another job uses"));
  other.start(0);  // finds the port taken
  other.wait();
  EXPECT_THAT(other.errors[0], HasSubstr("another job uses"));
  job.start(1);
  job.wait();
  EXPECT_EQ(job.errors[0] + job.errors[1], "");
}

TEST(TcpRendezvous, WithoutMasterAddr_TheVariablesAreNamed) {
  Job job(2, 0.3);
  job.ranks[1].master_addr = "";
  job.start(1);
  job.wait();
  EXPECT_THAT(job.errors[1], HasSubstr("usage: "));
  EXPECT_THAT(job.errors[1], HasSubstr("need MASTER_ADDR"));
}

TEST(TcpRendezvous, AddressOfAnotherHost_IsRefusedOnRankZero) {
  Job job(2, 0.3);
  job.ranks[0].master_addr = "192.0.2.1";  // reserved for documentation (RFC 5737): no host has it
  job.start(0);
  job.wait();
  EXPECT_THAT(job.errors[0], HasSubstr("MASTER_ADDR must be an address of the host of rank 0"));
}

TEST(TcpRendezvous, UnknownName_IsReportedAtTheTimeout) {
  Job job(2, 0.1);
  const std::string name(64, 'x');  // too long to be looked up
  job.ranks[1].master_addr = name;
  job.start(1);
  job.wait();
  EXPECT_THAT(job.errors[1],
              HasSubstr("timeout: MASTER_ADDR=" + name + " is not known on this host"));
}

// A rank whose messages the test writes itself.

template <class T>
void send(const Descriptor& socket, const T& value) {
  EXPECT_TRUE(send_all(socket.get(), std::as_bytes(std::span(&value, 1)), deadline_in(5)));
}

template <class T>
T receive(const Descriptor& socket) {
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

/// A connection to rank 0 over which the rank has authenticated and joined.
Descriptor join(const Job& job, int rank, const Endpoint& endpoint = {0, 1, {}}) {
  Descriptor zero = connected(job.address());
  const std::string& id = job.ranks[0].job_id;
  send(zero, AuthRequest{kJobMagic, {}});
  send(zero, JoinRequest{{kJobMagic, rank, static_cast<int32_t>(job.ranks.size()), getpid(), rank},
                         XXH3_64bits(id.data(), id.size()),
                         endpoint,
                         place_of(job.ranks[static_cast<size_t>(rank)])});
  return zero;
}

/// What rank 0 sends to rank 2 when all ranks have joined.
struct Table {
  Token key;
  std::array<Endpoint, 2> endpoints;
};

Table receive_table(const Descriptor& zero) {
  EXPECT_EQ(receive<Status>(zero).code, 0);
  const auto key = receive<Token>(zero);
  return {key, receive<std::array<Endpoint, 2>>(zero)};
}

TEST(TcpRendezvous, RankThatEndsDuringRendezvous_IsReportedToTheOthers) {
  for (const int num_ranks : {3, 2}) {  // with 2 ranks, all have joined when rank 1 ends
    Job job(num_ranks);
    job.start(0);
    { const Descriptor gone = join(job, 1); }
    job.wait();
    EXPECT_THAT(job.errors[0], HasSubstr(str("peer: rank 1 (pid ", getpid(), " at ")));
    EXPECT_THAT(job.errors[0], HasSubstr(") ended during rendezvous"));
  }
}

TEST(TcpRendezvous, RankThatDoesNotConnectToAnotherOne_IsReportedToAll) {
  Job job(3, 1);
  job.start(0);
  job.start(1);
  const Descriptor zero = join(job, 2);
  receive_table(zero);
  const auto outcome = receive<Status>(zero);
  job.wait();
  EXPECT_EQ(outcome.code, static_cast<int32_t>(Code::kTimeout));
  for (const std::string& text : {std::string(outcome.text), job.errors[0], job.errors[1]})
    EXPECT_THAT(text, HasSubstr("rank 2 has not connected to rank 1 at "));
}

TEST(TcpRendezvous, UnreachableRank_IsReportedToAll) {
  Job job(3, 1);
  job.start(0);
  job.start(2);
  const Descriptor zero = join(job, 1);  // on this host, at port 1
  EXPECT_EQ(receive<Status>(zero).code, 0);
  receive<Token>(zero);
  receive<Endpoint>(zero);  // of rank 0
  const auto outcome = receive<Status>(zero);
  job.wait();
  EXPECT_EQ(outcome.code, static_cast<int32_t>(Code::kTimeout));
  for (const std::string& text : {std::string(outcome.text), job.errors[0], job.errors[2]})
    EXPECT_THAT(text, testing::ContainsRegex("rank 2 cannot reach rank 1 at .*:1 "
                                             "\\(Connection refused\\); let the hosts "));
}

/// Whether the other side soon closes this connection without sending anything.
bool is_closed(const Descriptor& socket) {
  pollfd state{socket.get(), POLLIN, 0};
  std::byte byte{};
  if (poll(&state, 1, 5000) != 1) return false;
  const ssize_t got = recv(socket.get(), &byte, 1, 0);
  return got == 0 || (got < 0 && errno == ECONNRESET);
}

TEST(TcpRendezvous, UnauthenticatedPeerOfANonzeroRank_IsRejected) {
  Job job(3);
  job.start(0);
  job.start(1);
  const Descriptor zero = join(job, 2);
  const Table table = receive_table(zero);
  const Endpoint& endpoint = table.endpoints[1];
  sockaddr_storage raw{};
  std::memcpy(&raw, endpoint.address, endpoint.size);
  HostAddress one(reinterpret_cast<const sockaddr*>(&raw), endpoint.size);
  one.set_port(endpoint.port);
  Token wrong = table.key;
  wrong.back() ^= std::byte{1};
  for (const auto& [auth, rank] : {std::pair(AuthRequest{kJobMagic, wrong}, 2),
                                   {AuthRequest{kJobMagic + 1, table.key}, 2},
                                   {AuthRequest{kJobMagic, table.key}, 1},
                                   {AuthRequest{kJobMagic, table.key}, 3}}) {
    const Descriptor peer = connected(one);
    send(peer, auth);
    send(peer, rank);
    EXPECT_TRUE(is_closed(peer));
  }
  job.sockets[2].resize(2);
  job.sockets[2][1] = connected(one);
  send(job.sockets[2][1], AuthRequest{kJobMagic, table.key});
  send(job.sockets[2][1], 2);
  send(zero, Status{kJobMagic, 0, ""});
  EXPECT_EQ(receive<Status>(zero).code, 0);
  job.wait();
  ASSERT_EQ(job.errors[0] + job.errors[1], "");
  expect_connected(job, 1, 2);
}

// The same with processes, each of which sees itself as the only rank on its host.

/// The environment of such a process, except its rank.
std::vector<std::string> one_rank_host(int port) {
  return {"LOCAL_WORLD_SIZE=1", "MASTER_ADDR=" + own_loopback(), str("MASTER_PORT=", port)};
}

TEST(TcpRendezvous, ProcessesOfSeveralHosts_JoinAndLeaveNothing) {
  test::StartedJob job;
  for (const int rank : {2, 0, 1}) job.start(rank, 3, one_rank_host(22000));
  EXPECT_EQ(job.wait(), std::vector<int>(3, 0)) << job.errors(0) << job.errors(1);
  EXPECT_TRUE(job.is_clean());
}

TEST(TcpRendezvous, RankKilledOnAnotherHost_StopsTheOthersWithItsPlace) {
  test::StartedJob job;
  auto variables = one_rank_host(22001);
  variables.emplace_back("CLEAVE_TEST_DIES=1");
  for (int rank = 0; rank < 3; ++rank) job.start(rank, 3, variables);
  EXPECT_EQ(job.wait(), (std::vector<int>{6, 137, 6}));
  for (const size_t rank : {0U, 2U}) {
    EXPECT_THAT(job.errors(rank), HasSubstr("rank 1 (pid "));
    EXPECT_THAT(job.errors(rank), HasSubstr(" at 127.0.0.1) died, last seen "));
    EXPECT_THAT(job.errors(rank), HasSubstr(str("rank ", rank, " stopped in barrier 2")));
  }
}

TEST(TcpRendezvous, DifferentWorldSizes_AreReportedOnAllRanks) {
  test::StartedJob job;
  job.start(0, 3, one_rank_host(22002));
  job.start(1, 2, one_rank_host(22002));
  job.start(2, 3, one_rank_host(22002));
  EXPECT_EQ(job.wait(), std::vector<int>(3, 3));
  for (size_t rank = 0; rank < 3; ++rank) {
    EXPECT_THAT(job.errors(rank), HasSubstr("rank 0 has world size 3, rank 1 (pid "));
  }
}

TEST(TcpRendezvous, DuplicateRanks_AreReportedOnAllRanks) {
  for (const int duplicate : {0, 1}) {
    test::StartedJob job;
    job.start(0, 3, one_rank_host(22003 + duplicate));
    job.start(1, 3, one_rank_host(22003 + duplicate));
    job.start(duplicate, 3, one_rank_host(22003 + duplicate));
    EXPECT_EQ(job.wait(), std::vector<int>(3, 3)) << duplicate;
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_THAT(job.errors(i), HasSubstr(str("rank ", duplicate, " is claimed by pid ")));
    }
  }
}

// Without the comparison they would wait for each other until the timeout.
TEST(TcpRendezvous, DifferentLocalWorldSizes_AreReportedOnAllRanksBeforeTheTimeout) {
  for (const int world_size : {2, 3}) {  // 2: rank 0 expects all on its host
    test::StartedJob job;
    const auto begin = Clock::now();
    for (int rank = 0; rank < world_size; ++rank) {
      auto variables = one_rank_host(22004 + world_size);
      if (rank == 0) variables.emplace_back("LOCAL_WORLD_SIZE=2");
      job.start(rank, world_size, variables);
    }
    EXPECT_EQ(job.wait(), std::vector<int>(static_cast<size_t>(world_size), 3));
    EXPECT_LT(milliseconds_since(begin), 5000);
    for (size_t rank = 0; rank < static_cast<size_t>(world_size); ++rank) {
      EXPECT_THAT(
          job.errors(rank),
          HasSubstr("LOCAL_WORLD_SIZE (or the launcher's variable for it) is 2 on rank 0, "));
    }
  }
}

TEST(TcpRendezvous, MissingRanks_AreListedToAllAtTheTimeout) {
  test::StartedJob job(0.6);
  const auto begin = Clock::now();
  job.start(0, 4, one_rank_host(22005));
  job.start(2, 4, one_rank_host(22005));
  EXPECT_EQ(job.wait(), std::vector<int>(2, 7));
  EXPECT_LT(milliseconds_since(begin), 1500);
  EXPECT_THAT(job.errors(0), HasSubstr("rank(s) 1, 3 of 4 did not join"));
  EXPECT_THAT(job.errors(1), HasSubstr("did not join"));
}

}  // namespace
}  // namespace cleave::tcp_rendezvous_test
