#include "cleave/comm/bootstrap/rendezvous.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fcntl.h>
#include <optional>
#include <poll.h>
#include <string_view>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "cleave/comm/bootstrap/membership.h"
#include "cleave/comm/bootstrap/tcp_rendezvous.h"
#include "cleave/comm/bootstrap/rendezvous_dir.h"
#include "cleave/comm/shm/shm_world.h"

// The meeting of ranks that somebody else started on this host:
// 1. Every rank opens the private folder that is named after user and job. Rank 0 locks it (a
//    second rank 0 cannot) and listens on a socket in it; the others try to connect until they can.
// 2. A rank sends a Hello. Rank 0 compares it with its own and with those that came before. A
//    conflict is told to all that came, and for a while to all that still come: Error(kShape).
// 3. When all are there, rank 0 sends each the descriptor of the shared segment and removes the folder.
//    When time is over it tells those that came who is missing.

namespace cleave {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kRetry{5};
// How long a refused job is still told to ranks that come late.
constexpr std::chrono::milliseconds kRefusalTime{400};

/// Rank 0's answer: with code 0 and a descriptor, or an error.
struct Answer {
  int32_t code;
  char text[kAbortTextBytes];
};

Answer answer_of(Code code, std::string_view text) {
  Answer answer{};
  answer.code = static_cast<int32_t>(code);
  text.copy(answer.text, sizeof(answer.text) - 1);
  return answer;
}

/// Sends an answer, with a descriptor unless `fd` is negative. A rank that is gone is its own
/// affair: the segment shows it.
void send_answer(int socket, const Answer& answer, int fd) {
  iovec part{const_cast<Answer*>(&answer), sizeof(answer)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(head), &fd, sizeof(int));
  }
  sendmsg(socket, &message, MSG_NOSIGNAL);
}

/// Receives an answer and its descriptor, -1 when there is none; nothing when rank 0 has gone.
std::optional<std::pair<Answer, int>> receive_answer(int socket) {
  Answer answer{};
  iovec part{&answer, sizeof(answer)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != sizeof(answer)) return std::nullopt;
  answer.text[sizeof(answer.text) - 1] = '\0';
  int fd = -1;
  const cmsghdr* head = CMSG_FIRSTHDR(&message);
  if (head != nullptr && head->cmsg_type == SCM_RIGHTS && head->cmsg_len == CMSG_LEN(sizeof(int))) {
    std::memcpy(&fd, CMSG_DATA(head), sizeof(int));
  }
  return std::pair{answer, fd};
}

/// Rank 0's side.
class Host {
 public:
  Host(const Environment& environment, RendezvousDir& place, double timeout_s)
      : environment_(environment),
        listener_(place.listen()),
        timeout_s_(timeout_s),
        deadline_(Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                     std::chrono::duration<double>(timeout_s))),
        guests_(static_cast<size_t>(environment.world_size)),
        list_(environment.world_size) {}

  std::shared_ptr<SharedSegment> gather() {
    auto segment = SharedSegment::create_shared(environment_.world_size);
    while (!list_.is_complete()) {
      if (Clock::now() >= deadline_) give_up();
      if (!wait_for_somebody(deadline_)) continue;
      check_guests();
      accept_all();
      if (conflict_) refuse();
    }
    for (const Descriptor& guest : guests_) {
      if (guest.is_open()) send_answer(guest.get(), Answer{}, segment->fd());
    }
    return segment;
  }

 private:
  bool wait_for_somebody(Clock::time_point until) {
    std::vector<pollfd> polled{{listener_.get(), POLLIN, 0}};
    for (const Descriptor& guest : guests_) {
      if (guest.is_open()) polled.push_back({guest.get(), POLLIN, 0});
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
    return poll(polled.data(), polled.size(),
                static_cast<int>(std::clamp<int64_t>(left, 0, 1000))) > 0;
  }

  /// A guest that has said hello says no more: readable means gone.
  void check_guests() {
    for (size_t rank = 0; rank < guests_.size(); ++rank) {
      pollfd state{guests_[rank].get(), POLLIN, 0};
      if (!guests_[rank].is_open() || poll(&state, 1, 0) != 1) continue;
      tell_all_and_throw(Code::kPeer, str("rank ", rank, " (", list_.name(static_cast<int>(rank)),
                                          ") ended while the ranks were meeting"));
    }
  }

  /// The next rank that wants to come in; not open when there is none. Its hello is read in any
  /// case: closing a socket with unread data would reset it under the answer.
  std::pair<Descriptor, std::optional<Hello>> accept_next() {
    Descriptor socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!socket.is_open()) return {std::move(socket), std::nullopt};
    // A guest sends its hello right after connecting; a stranger may not hold up the others.
    const timeval limit{.tv_sec = 0, .tv_usec = 200'000};
    setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    Hello hello{};
    const bool is_whole = recv(socket.get(), &hello, sizeof(hello), 0) == sizeof(hello);
    if (!is_whole || !is_same_user(socket.get())) return {std::move(socket), std::nullopt};
    return {std::move(socket), hello};
  }

  void accept_all() {
    while (true) {
      auto [socket, hello] = accept_next();
      if (!socket.is_open()) return;
      if (!hello) continue;
      const std::string problem = list_.add(*hello);
      if (!problem.empty()) {
        if (!conflict_) conflict_ = problem;
        refused_.push_back(std::move(socket));
        continue;
      }
      guests_[static_cast<size_t>(hello->rank)] = std::move(socket);
    }
  }

  [[noreturn]] void tell_all_and_throw(Code code, const std::string& text) {
    for (const Descriptor& guest : guests_) {
      if (guest.is_open()) send_answer(guest.get(), answer_of(code, text), -1);
    }
    for (const Descriptor& socket : refused_) send_answer(socket.get(), answer_of(code, text), -1);
    throw Error(code, text);
  }

  [[noreturn]] void refuse() {
    const Answer answer = answer_of(Code::kShape, *conflict_);
    const auto tell = [&](std::vector<Descriptor>& sockets) {
      for (const Descriptor& socket : sockets) {
        if (socket.is_open()) send_answer(socket.get(), answer, -1);
      }
      sockets.clear();
    };
    tell(guests_);
    tell(refused_);
    for (const auto end = Clock::now() + kRefusalTime; Clock::now() < end;) {
      if (!wait_for_somebody(end)) continue;
      const auto [socket, hello] = accept_next();
      if (hello) send_answer(socket.get(), answer, -1);
    }
    throw Error(Code::kShape, *conflict_);
  }

  [[noreturn]] void give_up() {
    tell_all_and_throw(Code::kTimeout, str("timeout of ", timeout_s_, " s: ", list_.missing()));
  }

  const Environment& environment_;
  Descriptor listener_;
  double timeout_s_;
  Clock::time_point deadline_;
  std::vector<Descriptor> guests_;  // by rank; rank 0's stays empty
  Membership list_;
  std::optional<std::string> conflict_;
  std::vector<Descriptor> refused_;
};

/// The other ranks' side; also of a rank 0 that finds another one.
std::shared_ptr<SharedSegment> visit(const Environment& environment, RendezvousDir& place,
                               double timeout_s) {
  const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                           std::chrono::duration<double>(timeout_s));
  Descriptor socket = place.try_connect();
  while (!socket.is_open()) {
    CLEAVE_CHECK(Clock::now() < deadline, Code::kTimeout, "timeout of ", timeout_s, " s: rank ",
                 environment.rank, " waits for rank 0 at ", place.folder(),
                 "; start all ranks with the same MASTER_ADDR and MASTER_PORT");
    std::this_thread::sleep_for(kRetry);
    socket = place.try_connect();
  }
  const Hello hello{kJobMagic, environment.rank, environment.world_size, getpid()};
  std::optional<std::pair<Answer, int>> answer;
  while (true) {
    send(socket.get(), &hello, sizeof(hello), MSG_NOSIGNAL);
    answer = receive_answer(socket.get());
    if (answer || Clock::now() >= deadline) break;
    // On a busy machine the hello may come so late that rank 0 took this rank for a stranger: if it
    // still listens, it has not ended.
    socket = place.try_connect();
    if (!socket.is_open()) break;
  }
  CLEAVE_CHECK(answer.has_value(), Code::kPeer, "rank 0 ended while the ranks were meeting; rank ",
               environment.rank, " was there");
  if (answer->first.code != 0) {
    throw Error(static_cast<Code>(answer->first.code), answer->first.text);
  }
  return SharedSegment::attach(answer->second);
}

}  // namespace

std::shared_ptr<SharedSegment> rendezvous_ranks(const Environment& environment, double timeout_s) {
  RendezvousDir place(environment);
  if (environment.rank == 0 && place.try_host()) {
    return Host(environment, place, timeout_s).gather();
  }
  return visit(environment, place, timeout_s);
}

namespace {

std::shared_ptr<SharedSegment> inherited_segment(const Environment& environment) {
  auto segment = SharedSegment::attach(environment.job_fd);
  fcntl(segment->fd(), F_SETFD, FD_CLOEXEC);
  CLEAVE_CHECK(segment->num_ranks() == environment.world_size, Code::kShape,
               "WORLD_SIZE=", environment.world_size, " but the launcher made a job of ",
               segment->num_ranks(), " ranks; leave WORLD_SIZE as the launcher sets it");
  const RankSlot& slot = segment->rank(environment.rank);
  CLEAVE_CHECK(slot.state.load() == RankState::kAbsent, Code::kShape, "rank ", environment.rank,
               " of this job is taken by pid ", slot.pid.load(), ", pid ", getpid(),
               " claims it too; give each process its own RANK");
  return segment;
}

}  // namespace

std::unique_ptr<World> connect(const Environment& environment, const RankOptions& options) {
  if (environment.local_world_size < environment.world_size) {
    auto sockets = rendezvous_hosts(environment, options.timeout_s);
    const auto segment = SharedSegment::create_mirror(environment.world_size, environment.rank);
    return std::make_unique<ShmWorld>(
        segment, environment.rank, options,
        std::make_unique<TcpReplicator>(segment, environment.rank, std::move(sockets),
                                     options.timeout_s));
  }
  const auto segment = environment.job_fd >= 0      ? inherited_segment(environment)
                    : environment.world_size > 1 ? rendezvous_ranks(environment, options.timeout_s)
                                                 : SharedSegment::create_shared(1);
  return std::make_unique<ShmWorld>(segment, environment.rank, options);
}

}  // namespace cleave
