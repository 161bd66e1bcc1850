#include "cleave/comm/bootstrap/rendezvous_server.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <list>
#include <memory>
#include <sys/epoll.h>
#include <sys/random.h>
#include <unordered_map>

#include "cleave/base/resource_limits.h"
#include "cleave/comm/bootstrap/rendezvous_protocol.h"

namespace cleave::inline comm {
namespace {

using Clock = std::chrono::steady_clock;

// Connections beyond those of all ranks; the oldest one that has not joined makes room for others.
constexpr size_t kNumSpare = 128;
// How long rank 0 reports a conflict to ranks that connect late, and waits for ranks to close their
// connections after a failure: closing with unread data could discard the report of the failure.
constexpr std::chrono::milliseconds kRejectTime{400};
// The same for ranks that are slow to read.
constexpr std::chrono::milliseconds kSlowRejectTime{1500};
constexpr uint64_t kVersionMask = 0xffff;

class RendezvousServer {
 public:
  RendezvousServer(const Environment& environment, const HostAddress& address, Descriptor listener,
                   double timeout_s)
      : world_size_(static_cast<size_t>(environment.world_size)),
        token_(read_token(environment.token_file)),
        job_(job_hash(environment)),
        address_(address),
        listener_(std::move(listener)),
        epoll_(epoll_create1(EPOLL_CLOEXEC)),
        timeout_s_(timeout_s),
        deadline_(deadline_in(timeout_s)),
        membership_(environment.world_size),
        members_(world_size_),
        endpoints_(world_size_),
        places_(world_size_, place_of(environment)) {
    reserve_descriptors(static_cast<int64_t>(world_size_ + kNumSpare),
                        str("rank 0 of a job of ", world_size_, " ranks on several hosts"));
    CLEAVE_CHECK(epoll_.is_open() && control(EPOLL_CTL_ADD, listener_.get(), EPOLLIN), Code::kIo,
                 "epoll: ", std::strerror(errno));
  }

  std::vector<Descriptor> run() {
    while (!membership_.is_complete()) {
      if (Clock::now() >= deadline_) fail_at_timeout();
      serve(deadline_);
    }
    const std::string conflict = conflict_of_hosts(places_);
    if (!conflict.empty()) fail_all(Code::kShape, conflict);
    drop_pending();
    send_tables();
    await_reports();
    std::vector<Descriptor> sockets(world_size_);
    for (size_t rank = 1; rank < world_size_; ++rank) {
      sockets[rank] = std::move(members_[rank]->socket);
      // Ignores errors, as a dead rank is found later. The socket's buffer is empty.
      send_all(sockets[rank].get(), bytes_of(ok_), Clock::now() + kAuthTimeout);
    }
    return sockets;
  }

 private:
  enum class Phase { kJoining, kReporting, kFailed };

  struct Peer {
    Descriptor socket;
    Deadline deadline{};                 // to join
    std::list<int>::iterator pending{};  // until it has joined
    int rank = -1;                       // once it has joined
    bool is_authenticated = false;
    bool has_reported = false;
    bool is_blocked = false;  // has output that its socket does not accept yet
    size_t num_received = 0;  // bytes of the current message
    AuthRequest auth{};
    JoinRequest request{};
    std::unique_ptr<Status> report;
    std::vector<std::span<const std::byte>> output;  // in memory of the server
  };

  bool control(int operation, int fd, uint32_t events) const {
    epoll_event event{};
    event.events = events;
    event.data.fd = fd;
    return epoll_ctl(epoll_.get(), operation, fd, &event) == 0;
  }

  /// Handles events until `until`, but returns after the first ones.
  void serve(Deadline until) {
    if (!pending_.empty()) until = std::min(until, peers_.at(pending_.front()).deadline);
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
    std::array<epoll_event, 256> events{};
    const int count = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()),
                                 static_cast<int>(std::clamp<int64_t>(left, 0, 1000)));
    for (int i = 0; i < count; ++i) {
      const epoll_event& event = events[static_cast<size_t>(i)];
      if (event.data.fd == listener_.get()) {
        accept_all();
        continue;
      }
      // An earlier event may have closed it. If its number is used again, nothing is there to read.
      const auto found = peers_.find(event.data.fd);
      if (found == peers_.end()) continue;
      if ((event.events & EPOLLOUT) != 0) flush(found->second);
      if ((event.events & ~EPOLLOUT) != 0) receive(found->second);
    }
    while (!pending_.empty() && peers_.at(pending_.front()).deadline <= Clock::now()) {
      close(peers_.at(pending_.front()));
    }
  }

  void accept_all() {
    for (size_t i = 0; i < kNumSpare; ++i) {
      Descriptor socket = accept_from(listener_.get());
      if (!socket.is_open()) return;
      // Ranks join immediately after they have connected: the oldest connection is the least likely
      // to be a rank's.
      if (peers_.size() >= world_size_ + kNumSpare) close(peers_.at(pending_.front()));
      const int fd = socket.get();
      if (!control(EPOLL_CTL_ADD, fd, EPOLLIN)) continue;
      Peer& peer = peers_[fd];
      peer.socket = std::move(socket);
      peer.deadline = Clock::now() + kAuthTimeout;
      peer.pending = pending_.insert(pending_.end(), fd);
    }
  }

  void close(Peer& peer) {
    if (peer.rank < 0) pending_.erase(peer.pending);
    if (peer.is_blocked) --num_blocked_;
    peers_.erase(peer.socket.get());
  }

  void drop_pending() {
    listener_ = Descriptor();
    while (!pending_.empty()) close(peers_.at(pending_.front()));
  }

  [[nodiscard]] std::span<std::byte> message_of(Peer& peer) {
    if (phase_ == Phase::kFailed && peer.rank >= 0) return std::span(discarded_);
    if (peer.rank < 0) {
      return peer.is_authenticated ? writable_bytes_of(peer.request) : writable_bytes_of(peer.auth);
    }
    if (!peer.report) peer.report = std::make_unique<Status>();
    return writable_bytes_of(*peer.report);
  }

  /// Reads what has arrived, but not without end.
  void receive(Peer& peer) {
    for (int i = 0; i < 4; ++i) {
      const auto message = message_of(peer);
      const auto rest = message.subspan(peer.num_received);
      const ssize_t got = recv(peer.socket.get(), rest.data(), rest.size(), 0);
      if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
      const bool may_send = peer.rank < 0 || phase_ == Phase::kFailed ||
                            (phase_ == Phase::kReporting && !peer.has_reported);
      if (got <= 0 || !may_send) return end(peer);
      if (phase_ == Phase::kFailed && peer.rank >= 0) return;
      peer.num_received += static_cast<size_t>(got);
      if (peer.num_received < message.size()) continue;
      peer.num_received = 0;
      if (peer.rank >= 0) return take_report(peer);
      if (peer.is_authenticated) return admit(peer);
      if (!authenticate(peer)) return close(peer);
    }
  }

  /// Closes a connection that has ended or broken the protocol. A rank's one fails the job.
  void end(Peer& peer) {
    if (peer.rank >= 0 && phase_ != Phase::kFailed) {
      fail_all(Code::kPeer, str("rank ", peer.rank, " (", membership_.name(peer.rank),
                                ") ended during rendezvous"));
    }
    close(peer);
  }

  bool authenticate(Peer& peer) {
    if ((peer.auth.magic ^ kJobMagic) > kVersionMask) return false;
    const bool has_token = is_same(peer.auth.token, token_);
    peer.auth.token.wipe();
    if (!has_token) ++num_without_token_;
    return peer.is_authenticated = has_token;
  }

  void admit(Peer& peer) {
    const JoinRequest& request = peer.request;
    if (request.job != job_) {
      return reject(peer, error_status(Code::kShape, str("another job uses ", address_.text(),
                                                         "; give each job its own MASTER_PORT")));
    }
    if (phase_ == Phase::kFailed) return reject(peer, failure_);
    const std::string conflict =
        membership_.add(request.info, str(" at ", peer_address(peer.socket.get()).host()));
    if (!conflict.empty()) {
      reject(peer, error_status(Code::kShape, conflict));
      fail_all(Code::kShape, conflict);
    }
    peer.rank = request.info.rank;
    pending_.erase(peer.pending);
    const auto rank = static_cast<size_t>(peer.rank);
    members_[rank] = &peer;
    endpoints_[rank] = request.endpoint;
    places_[rank] = request.place;
  }

  void reject(Peer& peer, const Status& status) {
    // The socket's buffer is empty and takes all of it.
    send_all(peer.socket.get(), bytes_of(status), Clock::now());
    close(peer);
  }

  void take_report(Peer& peer) {
    const std::unique_ptr<Status> report = std::move(peer.report);
    if (report->code != 0) fail_all(static_cast<Code>(report->code), text_of(*report));
    peer.has_reported = true;
    ++num_reported_;
  }

  /// Sends what the socket accepts.
  void flush(Peer& peer) {
    while (!peer.output.empty()) {
      auto& next = peer.output.front();
      const ssize_t sent = ::send(peer.socket.get(), next.data(), next.size(), MSG_NOSIGNAL);
      if (sent < 0 && errno == EINTR) continue;
      if (sent < 0 && errno == EAGAIN) break;
      // After another error, receive() finds the end of the connection.
      next = sent < 0 ? next.last(0) : next.subspan(static_cast<size_t>(sent));
      if (next.empty()) peer.output.erase(peer.output.begin());
    }
    const bool is_blocked = !peer.output.empty();
    if (is_blocked == peer.is_blocked) return;
    peer.is_blocked = is_blocked;
    num_blocked_ += is_blocked ? 1 : -1;
    control(EPOLL_CTL_MOD, peer.socket.get(), is_blocked ? EPOLLIN | EPOLLOUT : EPOLLIN);
  }

  /// Reports a failure to all members. After a conflict, ranks that connect late get it too.
  [[noreturn]] void fail_all(Code code, const std::string& text) {
    phase_ = Phase::kFailed;
    failure_ = error_status(code, text);
    const bool is_conflict = code == Code::kShape;
    if (!is_conflict) drop_pending();
    for (auto& [_, peer] : peers_) {
      if (peer.rank < 0) continue;
      peer.num_received = 0;
      peer.output.push_back(bytes_of(failure_));
      flush(peer);
    }
    const auto begin = Clock::now();
    while (is_conflict || !peers_.empty()) {
      const Deadline until = begin + (num_blocked_ > 0 ? kSlowRejectTime : kRejectTime);
      if (Clock::now() >= until) break;
      serve(until);
    }
    throw Error(code, text);
  }

  [[noreturn]] void fail_at_timeout() {
    std::string text = str("timeout of ", timeout_s_, " s: ", membership_.missing(),
                           " with MASTER_ADDR and MASTER_PORT of ", address_.text());
    if (num_without_token_ > 0) {
      text += str("; ", num_without_token_, " connected with another CLEAVE_TOKEN_FILE");
    }
    fail_all(Code::kTimeout, text);
  }

  void send_tables() {
    phase_ = Phase::kReporting;
    CLEAVE_CHECK(getrandom(key_.data(), key_.size(), 0) == static_cast<ssize_t>(key_.size()),
                 Code::kIo, "getrandom: ", std::strerror(errno));
    for (size_t rank = 1; rank < world_size_; ++rank) {
      Peer& peer = *members_[rank];
      peer.output.push_back(bytes_of(ok_));
      if (endpoints_[rank].port != 0) {
        peer.output.emplace_back(key_);
        peer.output.push_back(std::as_bytes(std::span(endpoints_).first(rank)));
      }
      flush(peer);
    }
  }

  /// Waits until all members report that they are ready, or why not. Their timeout is the same as
  /// rank 0's, so they report first.
  void await_reports() {
    const Deadline limit =
        deadline_in(kOutcomeGraceS / 2) + (std::max(deadline_, Clock::now()) - Clock::now());
    while (num_reported_ + 1 < world_size_) {
      if (Clock::now() >= limit) {
        std::vector<int> silent;
        for (size_t rank = 1; rank < world_size_; ++rank) {
          if (!members_[rank]->has_reported) silent.push_back(static_cast<int>(rank));
        }
        fail_all(Code::kTimeout, str("timeout of ", timeout_s_, " s: rank(s) ", ranks_text(silent),
                                     " of ", world_size_, " joined, but did not report that they ",
                                     "are ready; see their messages"));
      }
      serve(limit);
    }
  }

  size_t world_size_;
  Token token_;
  Token key_;  // with which the ranks authenticate to each other
  uint64_t job_;
  HostAddress address_;
  Descriptor listener_, epoll_;
  double timeout_s_;
  Deadline deadline_;
  Membership membership_;
  Phase phase_ = Phase::kJoining;
  std::unordered_map<int, Peer> peers_;  // by descriptor
  std::list<int> pending_;               // of those that have not joined, oldest first
  std::vector<Peer*> members_;           // by rank; rank 0's is nullptr
  std::vector<Endpoint> endpoints_;      // by rank
  std::vector<HostPlace> places_;        // by rank
  Status ok_ = ok_status(), failure_{};
  std::array<std::byte, 1024> discarded_{};
  size_t num_reported_ = 0;
  int num_blocked_ = 0;
  int num_without_token_ = 0;
};

}  // namespace

std::vector<Descriptor> serve_rendezvous(const Environment& environment, const HostAddress& address,
                                         Descriptor listener, double timeout_s) {
  return RendezvousServer(environment, address, std::move(listener), timeout_s).run();
}

}  // namespace cleave::inline comm
