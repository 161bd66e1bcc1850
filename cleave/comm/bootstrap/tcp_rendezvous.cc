#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fcntl.h>
#include <optional>
#include <poll.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>
#include <xxhash.h>

#include "cleave/base/error.h"
#include "cleave/base/log.h"
#include "cleave/comm/bootstrap/membership.h"
#include "cleave/comm/bootstrap/rendezvous.h"
#include "cleave/comm/net/tcp.h"
#include "cleave/comm/shm/segment_layout.h"

// Rendezvous of ranks on several hosts:
// 1. Rank 0 listens at MASTER_ADDR:MASTER_PORT. Each other rank connects, opens a listening port of
//    its own on the interface that it connected from, and sends an AuthRequest (the token) and a
//    JoinRequest. This connection stays open: it becomes the one between the two ranks.
// 2. Rank 0 drops peers with a wrong token and checks the JoinRequests. It reports a conflict to
// all
//    ranks that have joined.
// 3. When all ranks have joined, rank 0 sends each the table of endpoints and a random key. Each
//    rank connects to the ranks below it, sends the key and its rank, and accepts connections from
//    the ranks above it.
// 4. Each rank reports to rank 0 that it has all its connections, or why not. Rank 0 sends the
//    outcome to all, so no rank starts work after another one has given up.

namespace cleave::inline comm {
namespace {

using Clock = std::chrono::steady_clock;

/// A secret. Its memory is wiped when it is destroyed. It is copied and compared byte by byte:
/// vector registers would keep it, and a later call may save them on the stack.
struct Token : std::array<std::byte, 32> {
  Token() : std::array<std::byte, 32>{} {}
  Token(const Token& other) : std::array<std::byte, 32>{} { *this = other; }
  Token& operator=(const Token& other) {
    for (size_t i = 0; i < size(); ++i) (*this)[i] = other.byte(i);
    return *this;
  }
  [[nodiscard]] std::byte byte(size_t i) const {
    return static_cast<const volatile std::byte*>(data())[i];
  }
  ~Token() { explicit_bzero(data(), size()); }
};

// How long a new connection may take to authenticate and join, and how many may be pending.
constexpr std::chrono::seconds kAuthTimeout{5};
constexpr size_t kMaxPending = 128;
// How long rank 0 reports a conflict to ranks that connect late.
constexpr std::chrono::milliseconds kRejectTime{400};
// How much longer than rank 0's timeout the other ranks wait for its outcome.
constexpr double kOutcomeGraceS = 2;
constexpr uint64_t kVersionMask = 0xffff;

/// The first message on every connection.
struct AuthRequest {
  uint64_t magic;
  Token token;
};

/// Where a rank can be reached.
struct Endpoint {
  uint32_t size;  // of the address; 0: on the host of rank 0, at that port
  int32_t port;
  std::byte address[28];
};

/// The second message of a rank to rank 0.
struct JoinRequest {
  RankInfo info;
  uint64_t job;  // hash of the launcher's job id
  Endpoint endpoint;
};

/// An outcome, sent by rank 0 and to rank 0: code 0 is success.
struct Status {
  uint64_t magic;
  int32_t code;
  char text[kAbortTextBytes];
};

template <class T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

template <class T>
std::span<std::byte> writable_bytes_of(T& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

Status error_status(Code code, std::string_view text) {
  Status status{};
  status.magic = kJobMagic;
  status.code = static_cast<int32_t>(code);
  text.copy(status.text, sizeof(status.text) - 1);
  return status;
}

Status ok_status() {
  Status status{};
  status.magic = kJobMagic;
  return status;
}

std::string text_of(const Status& status) {
  return {status.text, strnlen(status.text, sizeof(status.text))};
}

/// Constant time: compares all bytes, so that the time reveals nothing about them.
bool is_same(const Token& a, const Token& b) {
  auto difference = std::byte{0};
  for (size_t i = 0; i < a.size(); ++i) difference |= a.byte(i) ^ b.byte(i);
  return difference == std::byte{0};
}

/// The job's token: the first bytes of a file that only its owner may read; zeros without one.
Token read_token(const std::string& path) {
  Token token{};
  if (path.empty()) return token;
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat info {};
  CLEAVE_CHECK(file.is_open() && fstat(file.get(), &info) == 0, Code::kIo,
               "CLEAVE_TOKEN_FILE=", path, ": ", std::strerror(errno));
  CLEAVE_CHECK((info.st_mode & 077) == 0, Code::kIo, "CLEAVE_TOKEN_FILE=", path, " has mode ",
               std::oct, info.st_mode & 0777, "; others may not read it: chmod 600");
  CLEAVE_CHECK(read(file.get(), token.data(), token.size()) == static_cast<ssize_t>(token.size()),
               Code::kUsage, "CLEAVE_TOKEN_FILE=", path, " holds ", info.st_size,
               " bytes; it must hold 32 or more: head -c 32 /dev/urandom > FILE");
  return token;
}

uint64_t job_hash(const Environment& environment) {
  return XXH3_64bits(environment.job_id.data(), environment.job_id.size());
}

/// Whether the name resolves to a loopback address here: on other hosts it often resolves to
/// another.
bool is_name_of_this_host(const HostAddress& address, const std::string& master_addr) {
  return address.is_loopback() && master_addr != "localhost" && !is_numeric_address(master_addr);
}

/// A socket that listens at this address and port; on all interfaces if the address is a loopback
/// address that was given by name.
Descriptor listen_on_interface(HostAddress address, const std::string& master_addr) {
  const int port = address.port();
  if (is_name_of_this_host(address, master_addr)) address = any_address(address);
  address.set_port(port);
  return listen_at(address);
}

Endpoint endpoint_of(int listener) {
  const HostAddress address = own_address(listener);
  Endpoint endpoint{};
  endpoint.port = address.port();
  const bool is_any = address.host() == "0.0.0.0" || address.host() == "::";
  if (is_any || address.size() > sizeof(endpoint.address)) return endpoint;
  endpoint.size = address.size();
  std::memcpy(endpoint.address, address.raw(), address.size());
  return endpoint;
}

HostAddress address_of(const Endpoint& endpoint, int socket_of_rank_zero) {
  HostAddress address = peer_address(socket_of_rank_zero);
  if (endpoint.size != 0) {
    sockaddr_storage raw{};
    const auto size = std::min<socklen_t>(endpoint.size, sizeof(endpoint.address));
    std::memcpy(&raw, endpoint.address, size);
    address = HostAddress(reinterpret_cast<const sockaddr*>(&raw), size);
  }
  address.set_port(endpoint.port);
  return address;
}

/// The address of rank 0. Retries until the deadline: a name server may not know the name yet.
HostAddress master_address(const Environment& environment, Deadline deadline) {
  CLEAVE_CHECK(!environment.master_addr.empty() && environment.master_port > 0, Code::kUsage,
               "ranks on several hosts (", environment.local_world_size, " of ",
               environment.world_size,
               " here) need MASTER_ADDR, a name or address of rank 0's host, "
               "and MASTER_PORT; mpirun passes them on with -x MASTER_ADDR=... -x MASTER_PORT=...");
  while (true) {
    const auto address = find_address(environment.master_addr, environment.master_port);
    if (address) return *address;
    CLEAVE_CHECK(Clock::now() < deadline, Code::kTimeout, "MASTER_ADDR=", environment.master_addr,
                 " is not known on this host; give a numeric address");
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
}

/// Rank 0's side.
class Server {
 public:
  Server(const Environment& environment, const HostAddress& address, Descriptor listener,
         double timeout_s)
      : world_size_(environment.world_size),
        token_(read_token(environment.token_file)),
        job_(job_hash(environment)),
        address_(address),
        listener_(std::move(listener)),
        timeout_s_(timeout_s),
        deadline_(deadline_in(timeout_s)),
        membership_(environment.world_size),
        members_(static_cast<size_t>(environment.world_size)),
        endpoints_(static_cast<size_t>(environment.world_size)) {}

  std::vector<Descriptor> gather() {
    while (!membership_.is_complete()) {
      if (Clock::now() >= deadline_) fail_at_timeout();
      wait_for_events(std::min(deadline_, Clock::now() + std::chrono::seconds(1)));
      check_members();
      accept_all();
      read_pending();
      if (!conflict_.empty()) reject_all();
    }
    listener_ = Descriptor();
    send_table();
    await_all_connected();
    send_to_all(ok_status());
    return std::move(members_);
  }

 private:
  /// A connection that has not yet authenticated and joined.
  struct PendingPeer {
    Descriptor socket;
    Clock::time_point deadline;
    size_t num_received = 0;  // bytes of the current message
    bool is_authenticated = false;
    AuthRequest auth{};
    JoinRequest request{};
  };

  void wait_for_events(Clock::time_point until) const {
    std::vector<pollfd> polled{{listener_.get(), POLLIN, 0}};
    for (const PendingPeer& peer : pending_) polled.push_back({peer.socket.get(), POLLIN, 0});
    for (const Descriptor& member : members_) {
      if (member.is_open()) polled.push_back({member.get(), POLLIN, 0});
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
    poll(polled.data(), polled.size(), static_cast<int>(std::max<int64_t>(left, 0)));
  }

  /// A member sends nothing before it gets the table: a readable socket means that it has ended.
  void check_members() {
    for (int rank = 1; rank < world_size_; ++rank) {
      const Descriptor& member = members_[static_cast<size_t>(rank)];
      pollfd state{member.get(), POLLIN, 0};
      if (!member.is_open() || poll(&state, 1, 0) != 1) continue;
      fail_all(Code::kPeer,
               str("rank ", rank, " (", membership_.name(rank), ") ended during rendezvous"));
    }
  }

  void accept_all() {
    for (size_t i = 0; i < kMaxPending; ++i) {
      Descriptor socket = accept_from(listener_.get());
      if (!socket.is_open()) return;
      // Ranks authenticate immediately, so the oldest pending connection is dropped.
      if (pending_.size() == kMaxPending) pending_.erase(pending_.begin());
      PendingPeer peer;
      peer.socket = std::move(socket);
      peer.deadline = Clock::now() + kAuthTimeout;
      pending_.push_back(std::move(peer));
    }
  }

  void read_pending() {
    std::vector<PendingPeer> still;
    for (PendingPeer& peer : pending_) {
      if (is_still_pending(peer)) still.push_back(std::move(peer));
    }
    pending_ = std::move(still);
  }

  /// Reads what has arrived; false when the peer has become a member or was rejected.
  bool is_still_pending(PendingPeer& peer) {
    while (true) {
      const auto message =
          peer.is_authenticated ? writable_bytes_of(peer.request) : writable_bytes_of(peer.auth);
      const auto rest = message.subspan(peer.num_received);
      const ssize_t got = recv(peer.socket.get(), rest.data(), rest.size(), 0);
      if (got < 0 && (errno == EAGAIN || errno == EINTR)) return Clock::now() < peer.deadline;
      if (got <= 0) return false;
      peer.num_received += static_cast<size_t>(got);
      if (peer.num_received < message.size()) continue;
      if (peer.is_authenticated) {
        admit(peer);
        return false;
      }
      const AuthRequest& auth = peer.auth;
      if ((auth.magic ^ kJobMagic) > kVersionMask) return false;
      if (!is_same(auth.token, token_)) {
        ++num_without_token_;
        return false;
      }
      peer.is_authenticated = true;
      peer.num_received = 0;
    }
  }

  void admit(PendingPeer& peer) {
    const JoinRequest& request = peer.request;
    if (request.job != job_) {
      send(peer.socket, error_status(Code::kShape, str("another job uses ", address_.text(),
                                                       "; give jobs different MASTER_PORTs")));
      return;
    }
    if (conflict_.empty()) {
      conflict_ =
          membership_.add(request.info, str(" at ", peer_address(peer.socket.get()).host()));
    }
    if (!conflict_.empty()) return send(peer.socket, error_status(Code::kShape, conflict_));
    const auto rank = static_cast<size_t>(request.info.rank);
    members_[rank] = std::move(peer.socket);
    endpoints_[rank] = request.endpoint;
  }

  /// Ignores send errors: a dead member is detected when its socket becomes readable.
  template <class T>
  void send(const Descriptor& socket, const T& value) const {
    send_all(socket.get(), bytes_of(value), Clock::now() + kAuthTimeout);
  }

  void send_to_all(const Status& status) const {
    for (const Descriptor& member : members_) {
      if (member.is_open()) send(member, status);
    }
  }

  [[noreturn]] void fail_all(Code code, const std::string& text) const {
    send_to_all(error_status(code, text));
    throw Error(code, text);
  }

  /// Reports the conflict to all members, and for kRejectTime to ranks that connect later.
  [[noreturn]] void reject_all() {
    send_to_all(error_status(Code::kShape, conflict_));
    members_.clear();
    for (const auto end = Clock::now() + kRejectTime; Clock::now() < end;) {
      wait_for_events(end);
      accept_all();
      read_pending();
    }
    throw Error(Code::kShape, conflict_);
  }

  [[noreturn]] void fail_at_timeout() const {
    std::string text = str("timeout of ", timeout_s_, " s: ", membership_.missing(),
                           " with MASTER_ADDR and ", "MASTER_PORT of ", address_.text());
    if (num_without_token_ > 0) {
      text += str("; ", num_without_token_, " connected with another CLEAVE_TOKEN_FILE");
    }
    fail_all(Code::kTimeout, text);
  }

  void send_table() {
    Token key{};
    CLEAVE_CHECK(getrandom(key.data(), key.size(), 0) == static_cast<ssize_t>(key.size()),
                 Code::kIo, "getrandom: ", std::strerror(errno));
    for (const Descriptor& member : members_) {
      if (!member.is_open()) continue;
      send(member, ok_status());
      send(member, key);
      send_all(member.get(), std::as_bytes(std::span(endpoints_)), Clock::now() + kAuthTimeout);
    }
  }

  /// Waits until all members report that they have their connections, or why not. Their timeout is
  /// the same as rank 0's.
  void await_all_connected() {
    const auto limit =
        deadline_in(kOutcomeGraceS / 2) + (std::max(deadline_, Clock::now()) - Clock::now());
    std::vector<bool> is_connected(members_.size());
    is_connected[0] = true;
    while (std::find(is_connected.begin(), is_connected.end(), false) != is_connected.end()) {
      wait_for_events(limit);
      for (size_t rank = 1; rank < members_.size(); ++rank) {
        pollfd state{members_[rank].get(), POLLIN, 0};
        const bool has_status = !is_connected[rank] && poll(&state, 1, 0) == 1;
        if (has_status || Clock::now() > limit) receive_status(rank, limit);
        if (has_status) is_connected[rank] = true;
      }
    }
  }

  void receive_status(size_t rank, Deadline limit) const {
    Status status{};
    if (!receive_all(members_[rank].get(), writable_bytes_of(status), limit)) {
      fail_all(Code::kPeer, str("rank ", rank, " (", membership_.name(static_cast<int>(rank)),
                                ") ended during rendezvous"));
    }
    if (status.code != 0) fail_all(static_cast<Code>(status.code), text_of(status));
  }

  int world_size_;
  Token token_;
  uint64_t job_;
  HostAddress address_;
  Descriptor listener_;
  double timeout_s_;
  Clock::time_point deadline_;
  Membership membership_;
  std::vector<PendingPeer> pending_;
  std::vector<Descriptor> members_;  // by rank; rank 0's stays empty
  std::vector<Endpoint> endpoints_;  // by rank
  std::string conflict_;
  int num_without_token_ = 0;
};

/// The other ranks' side.
class Client {
 public:
  Client(const Environment& environment, const HostAddress& address, double timeout_s)
      : environment_(environment),
        address_(address),
        deadline_(deadline_in(timeout_s)),
        outcome_deadline_(deadline_in(timeout_s + kOutcomeGraceS)),
        timeout_s_(timeout_s),
        sockets_(static_cast<size_t>(environment.world_size)) {}

  std::vector<Descriptor> join() {
    Descriptor& zero = sockets_[0];
    std::string problem;
    zero = connect_until(address_, deadline_, problem);
    CLEAVE_CHECK(zero.is_open(), Code::kTimeout, "timeout of ", timeout_s_, " s: rank ",
                 environment_.rank, " waits for rank 0 at ", address_.text(), " (", problem,
                 "); start all ranks with the same MASTER_ADDR and MASTER_PORT");
    HostAddress interface = own_address(zero.get());
    interface.set_port(0);
    listener_ = listen_on_interface(interface, environment_.master_addr);
    send_join_request();
    receive_outcome();
    Token key{};
    std::vector<Endpoint> table(sockets_.size());
    CLEAVE_CHECK(
        receive_all(zero.get(), key, outcome_deadline_) &&
            receive_all(zero.get(), std::as_writable_bytes(std::span(table)), outcome_deadline_),
        Code::kPeer, "rank 0 ended during rendezvous");
    report_status(connect_to_all(key, table));
    receive_outcome();
    return std::move(sockets_);
  }

  /// The error that a rank 0 already listening there sends; nullopt if no Cleave rank 0 answers.
  static std::optional<Error> error_of_running_server(const Environment& environment,
                                                      const HostAddress& address) {
    constexpr double kTimeout = 0.05;
    Client client(environment, address, kTimeout);
    std::string problem;
    client.sockets_[0] = connect_until(address, client.deadline_, problem);
    if (!client.sockets_[0].is_open()) return std::nullopt;
    client.send_join_request();
    Status status{};
    if (!receive_all(client.sockets_[0].get(), writable_bytes_of(status), client.deadline_) ||
        status.magic != kJobMagic || status.code == 0) {
      return std::nullopt;
    }
    return Error(static_cast<Code>(status.code), text_of(status));
  }

 private:
  void send_join_request() const {
    const AuthRequest auth{kJobMagic, read_token(environment_.token_file)};
    JoinRequest request{};
    request.info = {kJobMagic, environment_.rank, environment_.world_size, getpid(),
                    environment_.rank};
    request.job = job_hash(environment_);
    if (listener_.is_open()) request.endpoint = endpoint_of(listener_.get());
    send_all(sockets_[0].get(), bytes_of(auth), deadline_);
    send_all(sockets_[0].get(), bytes_of(request), deadline_);
  }

  void receive_outcome() const {
    Status status{};
    CLEAVE_CHECK(receive_all(sockets_[0].get(), writable_bytes_of(status), outcome_deadline_),
                 Code::kPeer, "rank 0 at ", address_.text(), " closed the connection of rank ",
                 environment_.rank,
                 " during rendezvous; it has ended, or has another CLEAVE_TOKEN_FILE");
    CLEAVE_CHECK(status.magic == kJobMagic, Code::kIo, "another program answers at ",
                 address_.text(), "; choose another MASTER_PORT");
    if (status.code != 0) throw Error(static_cast<Code>(status.code), text_of(status));
  }

  void report_status(const std::optional<Error>& problem) const {
    const Status status = problem ? error_status(problem->code(), problem->what()) : ok_status();
    send_all(sockets_[0].get(), bytes_of(status), outcome_deadline_);
  }

  /// Connects to all ranks; returns why it could not, if it could not.
  std::optional<Error> connect_to_all(const Token& key, const std::vector<Endpoint>& table) {
    try {
      for (int rank = 1; rank < environment_.rank; ++rank) {
        connect_to(rank, key, address_of(table[static_cast<size_t>(rank)], sockets_[0].get()));
      }
      accept_higher_ranks(key);
    } catch (const Error& error) {
      return error;
    }
    return std::nullopt;
  }

  void connect_to(int rank, const Token& key, const HostAddress& address) {
    std::string problem;
    Descriptor socket = connect_until(address, deadline_, problem);
    CLEAVE_CHECK(socket.is_open(), Code::kTimeout, "timeout of ", timeout_s_, " s: rank ",
                 environment_.rank, " cannot reach rank ", rank, " at ", address.text(), " (",
                 problem, "); let the hosts of a job connect to each other on all ports");
    const AuthRequest auth{kJobMagic, key};
    const int32_t self = environment_.rank;
    const bool is_sent = send_all(socket.get(), bytes_of(auth), deadline_) &&
                         send_all(socket.get(), bytes_of(self), deadline_);
    CLEAVE_CHECK(is_sent, Code::kPeer, "rank ", rank, " at ", address.text(),
                 " ended during rendezvous");
    sockets_[static_cast<size_t>(rank)] = std::move(socket);
  }

  void accept_higher_ranks(const Token& key) {
    while (true) {
      int missing = environment_.rank + 1;
      while (missing < environment_.world_size &&
             sockets_[static_cast<size_t>(missing)].is_open()) {
        ++missing;
      }
      if (missing == environment_.world_size) return;
      CLEAVE_CHECK(Clock::now() < deadline_, Code::kTimeout, "timeout of ", timeout_s_, " s: rank ",
                   missing, " has not connected to rank ", environment_.rank, " at ",
                   own_address(listener_.get()).text(),
                   "; let the hosts of a job connect to each other on all ports");
      pollfd polled[] = {{listener_.get(), POLLIN, 0}, {sockets_[0].get(), POLLIN, 0}};
      poll(polled, 2, 100);
      // Before all are connected rank 0 sends only failures; receive_outcome() reads them.
      if (polled[1].revents != 0) return;
      accept_one(key);
    }
  }

  void accept_one(const Token& key) {
    Descriptor socket = accept_from(listener_.get());
    if (!socket.is_open()) return;
    AuthRequest auth{};
    int32_t rank = 0;
    const auto until = std::min<Deadline>(deadline_, Clock::now() + kAuthTimeout);
    if (!receive_all(socket.get(), writable_bytes_of(auth), until) || auth.magic != kJobMagic ||
        !is_same(auth.token, key) || !receive_all(socket.get(), writable_bytes_of(rank), until) ||
        rank <= environment_.rank || rank >= environment_.world_size) {
      return;
    }
    sockets_[static_cast<size_t>(rank)] = std::move(socket);
  }

  const Environment& environment_;
  HostAddress address_;
  Deadline deadline_, outcome_deadline_;
  double timeout_s_;
  Descriptor listener_;
  std::vector<Descriptor> sockets_;
};

}  // namespace

std::vector<Descriptor> rendezvous_hosts(const Environment& environment, double timeout_s) {
  const HostAddress address = master_address(environment, deadline_in(timeout_s));
  if (environment.rank != 0) return Client(environment, address, timeout_s).join();
  Descriptor listener = listen_on_interface(address, environment.master_addr);
  if (listener.is_open()) {
    if (is_name_of_this_host(address, environment.master_addr) && environment.token_file.empty()) {
      log_warning("MASTER_ADDR=", environment.master_addr, " is a loopback address here, so that ",
                  "all interfaces listen during rendezvous, and anybody may join; give a ",
                  "numeric address, or a CLEAVE_TOKEN_FILE");
    }
    return Server(environment, address, std::move(listener), timeout_s).gather();
  }
  const auto error = Client::error_of_running_server(environment, address);
  throw error.value_or(Error(Code::kIo, str("MASTER_PORT: ", address.text(),
                                            " is used by another program; choose another port")));
}

}  // namespace cleave::inline comm
