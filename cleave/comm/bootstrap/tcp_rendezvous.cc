#include "cleave/comm/bootstrap/tcp_rendezvous.h"

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
#include "cleave/base/mutant.h"
#include "cleave/comm/bootstrap/membership.h"
#include "cleave/comm/shm/segment_layout.h"
#include "cleave/comm/launch/port_holder.h"
#include "cleave/comm/net/tcp.h"

// The meeting of ranks on several hosts:
// 1. Rank 0 listens at MASTER_ADDR:MASTER_PORT. The others connect, each opens a port of its own on
//    the interface that leads there, and sends a AuthRequest (the token) and a Greeting. That connection
//    stays: it is the one between the two.
// 2. Rank 0 drops who has no token, and compares greetings. A conflict is told to all that came.
// 3. When all are there, rank 0 sends each the Table of ports and a random key. Each rank connects
// to
//    those below it, shows the key and its rank, and is connected to by those above it.
// 4. Each tells rank 0 that it has all its connections, or why not. Rank 0 tells all the outcome,
// so
//    nobody begins to work while another one has given up.

namespace cleave {
namespace {

using Clock = std::chrono::steady_clock;

/// A secret: gone from memory with the variable that held it.
struct Token : std::array<std::byte, 32> {
  Token() : std::array<std::byte, 32>{} {}
  Token(const Token&) = default;
  Token& operator=(const Token&) = default;
  ~Token() {
    if (!mutant_enabled("meeting.keeps_token")) explicit_bzero(data(), size());
  }
};

// How long one that has connected may take to say who it is, and how many may be at it.
constexpr std::chrono::seconds kGreetingTime{5};
constexpr size_t kMaxPending = 128;
// How long a refused job is still told to ranks that come late.
constexpr std::chrono::milliseconds kRefusalTime{400};
// By how much those that wait for rank 0's word outlast it.
constexpr double kPatienceSeconds = 2;
constexpr uint64_t kVersionMask = 0xffff;

/// What everybody sends first.
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

struct Greeting {
  Hello hello;
  uint64_t job;  // hash of the launcher's name for it
  Endpoint endpoint;
};

/// Rank 0's word, and a rank's word to rank 0: code 0 is well.
struct Answer {
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

Answer answer_of(Code code, std::string_view text) {
  Answer answer{};
  answer.magic = kJobMagic;
  answer.code = static_cast<int32_t>(code);
  text.copy(answer.text, sizeof(answer.text) - 1);
  return answer;
}

Answer all_is_well() {
  Answer answer{};
  answer.magic = kJobMagic;
  return answer;
}

std::string text_of(const Answer& answer) {
  return {answer.text, strnlen(answer.text, sizeof(answer.text))};
}

/// Looks at all bytes, so that the time tells nothing about them.
bool is_same(const Token& a, const Token& b) {
  auto difference = std::byte{0};
  for (size_t i = 0; i < a.size(); ++i) difference |= a[i] ^ b[i];
  return difference == std::byte{0} || mutant_enabled("meeting.any_token");
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

/// A host's name often means a loopback address on itself and another one elsewhere.
bool is_name_of_this_host(const HostAddress& address, const std::string& master_addr) {
  return address.is_loopback() && master_addr != "localhost" && !is_in_digits(master_addr);
}

/// A socket that listens on the interface with this address, at its port; on all interfaces where
/// the address does not say which.
Descriptor listen_on_interface(HostAddress address, const std::string& master_addr) {
  const int port = address.port();
  if (mutant_enabled("meeting.listens_everywhere") || is_name_of_this_host(address, master_addr)) {
    address = any_address(address);
  }
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

/// Where rank 0 is. A name server may not know it yet: asked again until the time is over.
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
                 " is not known on this host; give an address in digits");
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
}

/// Rank 0's side.
class Host {
 public:
  Host(const Environment& environment, const HostAddress& address, Descriptor listener,
       double timeout_s)
      : world_size_(environment.world_size),
        token_(read_token(environment.token_file)),
        job_(job_hash(environment)),
        address_(address),
        listener_(std::move(listener)),
        timeout_s_(timeout_s),
        deadline_(deadline_in(timeout_s)),
        list_(environment.world_size),
        guests_(static_cast<size_t>(environment.world_size)),
        endpoints_(static_cast<size_t>(environment.world_size)) {}

  std::vector<Descriptor> gather() {
    while (!list_.is_complete()) {
      if (Clock::now() >= deadline_) give_up();
      wait_for_somebody(std::min(deadline_, Clock::now() + std::chrono::seconds(1)));
      check_guests();
      accept_all();
      read_pending();
      if (!conflict_.empty()) refuse();
    }
    listener_ = Descriptor();
    send_table();
    hear_all();
    tell_all(all_is_well());
    return std::move(guests_);
  }

 private:
  /// Somebody who has connected and not yet said who it is.
  struct PendingPeer {
    Descriptor socket;
    Clock::time_point until;
    size_t filled = 0;
    bool has_token = false;
    AuthRequest knock{};
    Greeting greeting{};
  };

  void wait_for_somebody(Clock::time_point until) const {
    std::vector<pollfd> polled{{listener_.get(), POLLIN, 0}};
    for (const PendingPeer& stranger : pending_)
      polled.push_back({stranger.socket.get(), POLLIN, 0});
    for (const Descriptor& guest : guests_) {
      if (guest.is_open()) polled.push_back({guest.get(), POLLIN, 0});
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
    poll(polled.data(), polled.size(), static_cast<int>(std::max<int64_t>(left, 0)));
  }

  /// A guest that was noted says no more before it gets the table: readable means gone.
  void check_guests() {
    for (int rank = 1; rank < world_size_; ++rank) {
      const Descriptor& guest = guests_[static_cast<size_t>(rank)];
      pollfd state{guest.get(), POLLIN, 0};
      if (!guest.is_open() || poll(&state, 1, 0) != 1) continue;
      tell_all_and_throw(Code::kPeer, str("rank ", rank, " (", list_.name(rank),
                                          ") ended while the ranks were meeting"));
    }
  }

  void accept_all() {
    for (size_t i = 0; i < kMaxPending; ++i) {
      Descriptor socket = accept_from(listener_.get());
      if (!socket.is_open()) return;
      // A rank says who it is at once: who has been silent longest makes room.
      if (pending_.size() == kMaxPending) pending_.erase(pending_.begin());
      PendingPeer stranger;
      stranger.socket = std::move(socket);
      stranger.until = Clock::now() + kGreetingTime;
      pending_.push_back(std::move(stranger));
    }
  }

  void read_pending() {
    std::vector<PendingPeer> still;
    for (PendingPeer& stranger : pending_) {
      if (is_still_pending(stranger)) still.push_back(std::move(stranger));
    }
    pending_ = std::move(still);
  }

  /// Reads on; false when the stranger became a guest or was sent away.
  bool is_still_pending(PendingPeer& stranger) {
    while (true) {
      const auto whole = stranger.has_token ? writable_bytes_of(stranger.greeting)
                                            : writable_bytes_of(stranger.knock);
      const auto room = whole.subspan(stranger.filled);
      const ssize_t got = recv(stranger.socket.get(), room.data(), room.size(), 0);
      if (got < 0 && (errno == EAGAIN || errno == EINTR)) return Clock::now() < stranger.until;
      if (got <= 0) return false;
      stranger.filled += static_cast<size_t>(got);
      if (stranger.filled < whole.size()) continue;
      if (stranger.has_token) {
        admit(stranger);
        return false;
      }
      const AuthRequest& knock = stranger.knock;
      if ((knock.magic ^ kJobMagic) > kVersionMask) return false;
      if (!is_same(knock.token, token_)) {
        ++num_without_token_;
        if (mutant_enabled("meeting.accepts_pending")) conflict_ = "a stranger came";
        return false;
      }
      stranger.has_token = true;
      stranger.filled = 0;
    }
  }

  void admit(PendingPeer& stranger) {
    const Greeting& greeting = stranger.greeting;
    if (greeting.job != job_) {
      send(stranger.socket, answer_of(Code::kShape, str("another job meets at ", address_.text(),
                                                        "; give jobs different MASTER_PORTs")));
      return;
    }
    if (conflict_.empty()) {
      conflict_ =
          list_.add(greeting.hello, str(" at ", peer_address(stranger.socket.get()).host()));
    }
    if (!conflict_.empty()) return send(stranger.socket, answer_of(Code::kShape, conflict_));
    const auto rank = static_cast<size_t>(greeting.hello.rank);
    guests_[rank] = std::move(stranger.socket);
    endpoints_[rank] = greeting.endpoint;
  }

  /// What a guest does not take is its own affair: its end shows later.
  template <class T>
  void send(const Descriptor& socket, const T& value) const {
    send_all(socket.get(), bytes_of(value), Clock::now() + kGreetingTime);
  }

  void tell_all(const Answer& answer) const {
    for (const Descriptor& guest : guests_) {
      if (guest.is_open()) send(guest, answer);
    }
  }

  [[noreturn]] void tell_all_and_throw(Code code, const std::string& text) const {
    tell_all(answer_of(code, text));
    throw Error(code, text);
  }

  /// Tells the conflict to all, and for a while to those that still come.
  [[noreturn]] void refuse() {
    tell_all(answer_of(Code::kShape, conflict_));
    guests_.clear();
    for (const auto end = Clock::now() + kRefusalTime; Clock::now() < end;) {
      wait_for_somebody(end);
      accept_all();
      read_pending();
    }
    throw Error(Code::kShape, conflict_);
  }

  [[noreturn]] void give_up() const {
    std::string text = str("timeout of ", timeout_s_, " s: ", list_.missing(),
                           " with MASTER_ADDR and ", "MASTER_PORT of ", address_.text());
    if (num_without_token_ > 0) {
      text += str("; ", num_without_token_, " came with another CLEAVE_TOKEN_FILE");
    }
    tell_all_and_throw(Code::kTimeout, text);
  }

  void send_table() {
    Token key{};
    CLEAVE_CHECK(getrandom(key.data(), key.size(), 0) == static_cast<ssize_t>(key.size()),
                 Code::kIo, "getrandom: ", std::strerror(errno));
    for (const Descriptor& guest : guests_) {
      if (!guest.is_open()) continue;
      send(guest, all_is_well());
      send(guest, key);
      send_all(guest.get(), std::as_bytes(std::span(endpoints_)), Clock::now() + kGreetingTime);
    }
  }

  /// Waits until all have their connections. They use the same limit and then say so.
  void hear_all() {
    const auto patience =
        deadline_in(kPatienceSeconds / 2) + (std::max(deadline_, Clock::now()) - Clock::now());
    std::vector<bool> is_heard(guests_.size());
    is_heard[0] = true;
    while (std::find(is_heard.begin(), is_heard.end(), false) != is_heard.end()) {
      wait_for_somebody(patience);
      for (size_t rank = 1; rank < guests_.size(); ++rank) {
        pollfd state{guests_[rank].get(), POLLIN, 0};
        const bool has_word = !is_heard[rank] && poll(&state, 1, 0) == 1;
        if (has_word || Clock::now() > patience) hear(rank, patience);
        if (has_word) is_heard[rank] = true;
      }
    }
  }

  void hear(size_t rank, Deadline patience) const {
    Answer answer{};
    if (!receive_all(guests_[rank].get(), writable_bytes_of(answer), patience)) {
      tell_all_and_throw(Code::kPeer, str("rank ", rank, " (", list_.name(static_cast<int>(rank)),
                                          ") ended while the ranks were meeting"));
    }
    if (answer.code != 0) tell_all_and_throw(static_cast<Code>(answer.code), text_of(answer));
  }

  int world_size_;
  Token token_;
  uint64_t job_;
  HostAddress address_;
  Descriptor listener_;
  double timeout_s_;
  Clock::time_point deadline_;
  Membership list_;
  std::vector<PendingPeer> pending_;
  std::vector<Descriptor> guests_;   // by rank; rank 0's stays empty
  std::vector<Endpoint> endpoints_;  // by rank
  std::string conflict_;
  int num_without_token_ = 0;
};

/// The other ranks' side.
class Guest {
 public:
  Guest(const Environment& environment, const HostAddress& address, double timeout_s)
      : environment_(environment),
        address_(address),
        deadline_(deadline_in(timeout_s)),
        patience_(deadline_in(timeout_s + kPatienceSeconds)),
        timeout_s_(timeout_s),
        sockets_(static_cast<size_t>(environment.world_size)) {}

  std::vector<Descriptor> visit() {
    Descriptor& zero = sockets_[0];
    std::string problem;
    zero = connect_until(address_, deadline_, problem);
    CLEAVE_CHECK(zero.is_open(), Code::kTimeout, "timeout of ", timeout_s_, " s: rank ",
                 environment_.rank, " waits for rank 0 at ", address_.text(), " (", problem,
                 "); start all ranks with the same MASTER_ADDR and MASTER_PORT");
    HostAddress interface = own_address(zero.get());
    interface.set_port(0);
    listener_ = listen_on_interface(interface, environment_.master_addr);
    greet();
    hear_word();
    Token key{};
    std::vector<Endpoint> table(sockets_.size());
    CLEAVE_CHECK(receive_all(zero.get(), key, patience_) &&
                     receive_all(zero.get(), std::as_writable_bytes(std::span(table)), patience_),
                 Code::kPeer, "rank 0 ended while the ranks were meeting");
    tell_rank_zero(find_problem(key, table));
    hear_word();
    return std::move(sockets_);
  }

  /// Only what a rank 0 that is there already has to say; nothing when no rank 0 of ours is there.
  static std::optional<Error> word_of_another_host(const Environment& environment,
                                                   const HostAddress& address) {
    constexpr double kTimeToSayIt = 0.05;
    Guest guest(environment, address, kTimeToSayIt);
    std::string problem;
    guest.sockets_[0] = connect_until(address, guest.deadline_, problem);
    if (!guest.sockets_[0].is_open()) return std::nullopt;
    guest.greet();
    Answer answer{};
    if (!receive_all(guest.sockets_[0].get(), writable_bytes_of(answer), guest.deadline_) ||
        answer.magic != kJobMagic || answer.code == 0) {
      return std::nullopt;
    }
    return Error(static_cast<Code>(answer.code), text_of(answer));
  }

 private:
  void greet() const {
    const AuthRequest knock{kJobMagic, read_token(environment_.token_file)};
    Greeting greeting{};
    greeting.hello = {kJobMagic, environment_.rank, environment_.world_size, getpid()};
    greeting.job = job_hash(environment_);
    if (listener_.is_open()) greeting.endpoint = endpoint_of(listener_.get());
    send_all(sockets_[0].get(), bytes_of(knock), deadline_);
    send_all(sockets_[0].get(), bytes_of(greeting), deadline_);
  }

  void hear_word() const {
    Answer answer{};
    CLEAVE_CHECK(receive_all(sockets_[0].get(), writable_bytes_of(answer), patience_), Code::kPeer,
                 "rank 0 at ", address_.text(), " let go of rank ", environment_.rank,
                 " while the ranks were meeting; it has ended, or has another CLEAVE_TOKEN_FILE");
    CLEAVE_CHECK(answer.magic == kJobMagic, Code::kIo, "at ", address_.text(),
                 " answers another program; choose another MASTER_PORT");
    if (answer.code != 0) throw Error(static_cast<Code>(answer.code), text_of(answer));
  }

  void tell_rank_zero(const std::optional<Error>& problem) const {
    const Answer word = problem ? answer_of(problem->code(), problem->what()) : all_is_well();
    send_all(sockets_[0].get(), bytes_of(word), patience_);
  }

  /// Connects to all ranks; why it could not, when it could not.
  std::optional<Error> find_problem(const Token& key, const std::vector<Endpoint>& table) {
    try {
      for (int rank = 1; rank < environment_.rank; ++rank) {
        connect_to(rank, key, address_of(table[static_cast<size_t>(rank)], sockets_[0].get()));
      }
      await_higher(key);
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
    const AuthRequest knock{kJobMagic, key};
    const int32_t self = environment_.rank;
    const bool is_sent = send_all(socket.get(), bytes_of(knock), deadline_) &&
                         send_all(socket.get(), bytes_of(self), deadline_);
    CLEAVE_CHECK(is_sent, Code::kPeer, "rank ", rank, " at ", address.text(),
                 " ended while the ranks were meeting");
    sockets_[static_cast<size_t>(rank)] = std::move(socket);
  }

  void await_higher(const Token& key) {
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
      // Before all are connected rank 0 has only failures to tell; hear_word() reads it.
      if (polled[1].revents != 0) return;
      accept_one(key);
    }
  }

  void accept_one(const Token& key) {
    Descriptor socket = accept_from(listener_.get());
    if (!socket.is_open()) return;
    AuthRequest knock{};
    int32_t rank = 0;
    const auto until = std::min<Deadline>(deadline_, Clock::now() + kGreetingTime);
    if (!receive_all(socket.get(), writable_bytes_of(knock), until) || knock.magic != kJobMagic ||
        !is_same(knock.token, key) || !receive_all(socket.get(), writable_bytes_of(rank), until) ||
        rank <= environment_.rank || rank >= environment_.world_size) {
      return;
    }
    sockets_[static_cast<size_t>(rank)] = std::move(socket);
  }

  const Environment& environment_;
  HostAddress address_;
  Deadline deadline_, patience_;
  double timeout_s_;
  Descriptor listener_;
  std::vector<Descriptor> sockets_;
};

}  // namespace

std::vector<Descriptor> rendezvous_hosts(const Environment& environment, double timeout_s) {
  const HostAddress address = master_address(environment, deadline_in(timeout_s));
  if (environment.rank != 0) return Guest(environment, address, timeout_s).visit();
  Descriptor listener = listen_on_interface(address, environment.master_addr);
  if (listener.is_open()) {
    if (is_name_of_this_host(address, environment.master_addr) && environment.token_file.empty()) {
      log_warning("MASTER_ADDR=", environment.master_addr, " is a loopback address here, so that ",
                  "all interfaces listen while the ranks meet, and anybody may join; give an ",
                  "address in digits, or a CLEAVE_TOKEN_FILE");
    }
    return Host(environment, address, std::move(listener), timeout_s).gather();
  }
  const auto word = Guest::word_of_another_host(environment, address);
  throw word.value_or(Error(Code::kIo, str("MASTER_PORT: ", address.text(), " is held by ",
                                           port_holder(address), "; choose another port")));
}

}  // namespace cleave
