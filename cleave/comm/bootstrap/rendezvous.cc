#include "cleave/comm/bootstrap/rendezvous.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fcntl.h>
#include <map>
#include <optional>
#include <poll.h>
#include <string_view>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "cleave/comm/bootstrap/membership.h"
#include "cleave/comm/bootstrap/rendezvous_dir.h"
#include "cleave/comm/bootstrap/rendezvous_protocol.h"
#include "cleave/comm/hosts/host_network.h"
#include "cleave/comm/shm/shm_world.h"

// Rendezvous of ranks on one host that another launcher started:
// 1. Every rank opens the private folder that is named after user and job. Rank 0 locks it (a
//    second rank 0 cannot) and listens on a socket in it. The others retry until they connect.
// 2. Each rank sends a RankInfo. Rank 0 checks it against its own and those of the ranks that have
//    joined. It reports a conflict, Error(kShape), to all connected ranks, and for kRejectTime to
//    ranks that connect later.
// 3. When all ranks have joined, rank 0 sends each the descriptor of the shared segment and removes
//    the folder. At the timeout it reports the missing ranks to those that have joined.
// In a job on several hosts, the ranks of each host do the same among themselves; the one of local
// rank 0 has the part of rank 0.

namespace cleave::inline comm {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kRetry{5};
// How long rank 0 reports a conflict to ranks that connect late.
constexpr std::chrono::milliseconds kRejectTime{400};

/// Rank 0's reply: code 0 with a descriptor, or an error.
struct Reply {
  int32_t code;
  char text[kAbortTextBytes];
};

Reply make_reply(Code code, std::string_view text) {
  Reply reply{};
  reply.code = static_cast<int32_t>(code);
  text.copy(reply.text, sizeof(reply.text) - 1);
  return reply;
}

/// Sends a reply, with a descriptor unless `fd` is negative. Ignores send errors: check_members()
/// and the shared segment detect dead ranks.
void send_reply(int socket, const Reply& reply, int fd) {
  iovec part{const_cast<Reply*>(&reply), sizeof(reply)};
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

/// Receives a reply and its descriptor, -1 if there is none; nullopt if rank 0 closed the
/// connection.
std::optional<std::pair<Reply, int>> receive_reply(int socket) {
  Reply reply{};
  iovec part{&reply, sizeof(reply)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != sizeof(reply)) return std::nullopt;
  reply.text[sizeof(reply.text) - 1] = '\0';
  int fd = -1;
  const cmsghdr* head = CMSG_FIRSTHDR(&message);
  if (head != nullptr && head->cmsg_type == SCM_RIGHTS && head->cmsg_len == CMSG_LEN(sizeof(int))) {
    std::memcpy(&fd, CMSG_DATA(head), sizeof(int));
  }
  return std::pair{reply, fd};
}

/// The ranks that rendezvous on one host: all of a job, or those of one host of several.
struct HostRanks {
  int rank = 0;      ///< 0 <= rank < count
  int count = 1;     ///< ranks that rendezvous
  int job_rank = 0;  ///< of all hosts
  int job_size = 1;
};

/// Rank 0's side.
class Server {
 public:
  Server(const HostRanks& ranks, RendezvousDir& dir, double timeout_s)
      : ranks_(ranks),
        listener_(dir.listen()),
        timeout_s_(timeout_s),
        deadline_(Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                     std::chrono::duration<double>(timeout_s))),
        members_(static_cast<size_t>(ranks.count)),
        membership_(ranks.count) {}

  std::shared_ptr<SharedSegment> gather() {
    auto segment = SharedSegment::create_for_host(ranks_.job_size, ranks_.count);
    pids_[ranks_.job_rank] = getpid();
    while (!membership_.is_complete()) {
      if (Clock::now() >= deadline_) fail_at_timeout();
      if (!wait_for_events(deadline_)) continue;
      check_members();
      accept_all();
      if (conflict_) reject_all();
    }
    // Before the replies: after them, each rank relies on the pids.
    for (const auto& [rank, pid] : pids_) segment->rank(rank).pid.store(pid);
    for (const Descriptor& member : members_) {
      if (member.is_open()) send_reply(member.get(), Reply{}, segment->fd());
    }
    return segment;
  }

 private:
  bool wait_for_events(Clock::time_point until) {
    std::vector<pollfd> polled{{listener_.get(), POLLIN, 0}};
    for (const Descriptor& member : members_) {
      if (member.is_open()) polled.push_back({member.get(), POLLIN, 0});
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
    return poll(polled.data(), polled.size(),
                static_cast<int>(std::clamp<int64_t>(left, 0, 1000))) > 0;
  }

  /// A member sends nothing after its RankInfo: a readable socket means that it has ended.
  void check_members() {
    for (size_t rank = 0; rank < members_.size(); ++rank) {
      pollfd state{members_[rank].get(), POLLIN, 0};
      if (!members_[rank].is_open() || poll(&state, 1, 0) != 1) continue;
      fail_all(Code::kPeer, str("rank ", rank, " (", membership_.name(static_cast<int>(rank)),
                                ") ended during rendezvous"));
    }
  }

  /// The next connection; not open if there is none. Its RankInfo is always read: closing a socket
  /// with unread data would reset the connection before the peer has read the reply.
  std::pair<Descriptor, std::optional<RankInfo>> accept_next() {
    Descriptor socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!socket.is_open()) return {std::move(socket), std::nullopt};
    // A rank sends its RankInfo right after connecting; another process must not delay the others.
    const timeval limit{.tv_sec = 0, .tv_usec = 200'000};
    setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    RankInfo info{};
    const bool is_whole = recv(socket.get(), &info, sizeof(info), 0) == sizeof(info);
    if (!is_whole || !is_same_user(socket.get())) return {std::move(socket), std::nullopt};
    return {std::move(socket), info};
  }

  void accept_all() {
    while (true) {
      auto [socket, info] = accept_next();
      if (!socket.is_open()) return;
      if (!info) continue;
      std::string problem = membership_.add(*info);
      if (problem.empty() && (info->job_rank < 0 || info->job_rank >= ranks_.job_size ||
                              !pids_.emplace(info->job_rank, info->pid).second)) {
        problem = str("rank ", info->job_rank, " of the job (pid ", info->pid, ") is not in [0, ",
                      ranks_.job_size, "), or another process of this host has it");
      }
      if (!problem.empty()) {
        if (!conflict_) conflict_ = problem;
        rejected_.push_back(std::move(socket));
        continue;
      }
      members_[static_cast<size_t>(info->rank)] = std::move(socket);
    }
  }

  [[noreturn]] void fail_all(Code code, const std::string& text) {
    for (const Descriptor& member : members_) {
      if (member.is_open()) send_reply(member.get(), make_reply(code, text), -1);
    }
    for (const Descriptor& socket : rejected_) send_reply(socket.get(), make_reply(code, text), -1);
    throw Error(code, text);
  }

  [[noreturn]] void reject_all() {
    const Reply reply = make_reply(Code::kShape, *conflict_);
    const auto send_to = [&](std::vector<Descriptor>& sockets) {
      for (const Descriptor& socket : sockets) {
        if (socket.is_open()) send_reply(socket.get(), reply, -1);
      }
      sockets.clear();
    };
    send_to(members_);
    send_to(rejected_);
    for (const auto end = Clock::now() + kRejectTime; Clock::now() < end;) {
      if (!wait_for_events(end)) continue;
      const auto [socket, info] = accept_next();
      if (info) send_reply(socket.get(), reply, -1);
    }
    throw Error(Code::kShape, *conflict_);
  }

  [[noreturn]] void fail_at_timeout() {
    const bool is_whole_job = ranks_.count == ranks_.job_size;
    fail_all(
        Code::kTimeout,
        str("timeout of ", timeout_s_, " s: ", membership_.missing(),
            is_whole_job ? " on this host, or set LOCAL_WORLD_SIZE to their number here" : ""));
  }

  HostRanks ranks_;
  std::map<int, int> pids_;  // by rank of the job
  Descriptor listener_;
  double timeout_s_;
  Clock::time_point deadline_;
  std::vector<Descriptor> members_;  // by rank; rank 0's stays empty
  Membership membership_;
  std::optional<std::string> conflict_;
  std::vector<Descriptor> rejected_;
};

/// The side of the other ranks, and of a second process that calls itself rank 0.
std::shared_ptr<SharedSegment> join(const HostRanks& ranks, RendezvousDir& dir, double timeout_s) {
  const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                           std::chrono::duration<double>(timeout_s));
  Descriptor socket = dir.try_connect();
  while (!socket.is_open()) {
    CLEAVE_CHECK(
        Clock::now() < deadline, Code::kTimeout, "timeout of ", timeout_s, " s: rank ", ranks.rank,
        " waits for rank 0 at ", dir.folder(),
        "; start all ranks with the same MASTER_ADDR and MASTER_PORT, and those of a host ",
        "with the same LOCAL_WORLD_SIZE");
    std::this_thread::sleep_for(kRetry);
    socket = dir.try_connect();
  }
  const RankInfo info{kJobMagic, ranks.rank, ranks.count, getpid(), ranks.job_rank};
  std::optional<std::pair<Reply, int>> reply;
  while (true) {
    send(socket.get(), &info, sizeof(info), MSG_NOSIGNAL);
    reply = receive_reply(socket.get());
    if (reply || Clock::now() >= deadline) break;
    // On a busy machine rank 0 may have closed the connection because the RankInfo came too late.
    // If rank 0 still listens, it has not ended: connect again.
    socket = dir.try_connect();
    if (!socket.is_open()) break;
  }
  CLEAVE_CHECK(reply.has_value(), Code::kPeer, "rank 0 ended during rendezvous; rank ", ranks.rank,
               " had joined");
  if (reply->first.code != 0) {
    throw Error(static_cast<Code>(reply->first.code), reply->first.text);
  }
  return SharedSegment::attach(reply->second);
}

std::shared_ptr<SharedSegment> rendezvous(const HostRanks& ranks, const Environment& environment,
                                          double timeout_s) {
  RendezvousDir dir(environment);
  if (ranks.rank == 0 && dir.try_lock()) return Server(ranks, dir, timeout_s).gather();
  return join(ranks, dir, timeout_s);
}

}  // namespace

std::shared_ptr<SharedSegment> rendezvous_ranks(const Environment& environment, double timeout_s) {
  return rendezvous({.rank = environment.rank,
                     .count = environment.world_size,
                     .job_rank = environment.rank,
                     .job_size = environment.world_size},
                    environment, timeout_s);
}

std::shared_ptr<SharedSegment> rendezvous_on_host(const Environment& environment,
                                                  double timeout_s) {
  if (environment.local_world_size == 1) return nullptr;
  Environment of_host = environment;
  of_host.job_id = str(environment.job_id, "@", host_id(environment));
  try {
    return rendezvous({.rank = environment.local_rank,
                       .count = environment.local_world_size,
                       .job_rank = environment.rank,
                       .job_size = environment.world_size},
                      of_host, timeout_s);
  } catch (const Error& error) {
    throw Error(
        error.code(),
        str("among the ", environment.local_world_size,
            " ranks of this host, numbered by LOCAL_RANK (or the launcher's variable for it): ",
            error.what()));
  }
}

void refuse_rank_zero_of_one_host(const Environment& environment) {
  const Descriptor socket = RendezvousDir(environment).try_connect();
  if (!socket.is_open()) return;
  const RankInfo info{kJobMagic, environment.rank, environment.world_size,
                      getpid(),  environment.rank, environment.local_world_size};
  send(socket.get(), &info, sizeof(info), MSG_NOSIGNAL);
  const auto reply = receive_reply(socket.get());
  if (reply) throw Error(static_cast<Code>(reply->first.code), reply->first.text);
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

/// connect() for ranks on several hosts.
std::unique_ptr<World> connect_over_hosts(Environment environment, const RankOptions& options) {
  CLEAVE_CHECK(environment.world_size <= kMaxJobRanks, Code::kUsage,
               "WORLD_SIZE=", environment.world_size, "; choose at most ", kMaxJobRanks,
               " ranks: each rank keeps a connection to every other rank and a copy of its state");
  const auto network = host_network(environment, options);
  try {
    if (network) network->find_rendezvous(environment);
    auto sockets = rendezvous_hosts(environment, options.timeout_s);
    auto host = rendezvous_on_host(environment, options.timeout_s);
    const auto segment = SharedSegment::create_replica(environment.world_size, environment.rank);
    auto replicator = std::make_unique<TcpReplicator>(segment, environment.rank, std::move(sockets),
                                                      options.timeout_s, host);
    return std::make_unique<ShmWorld>(segment, environment.rank, options, std::move(replicator),
                                      std::move(host), network);
  } catch (const Error& error) {
    if (network) network->note_failure(error.code());
    throw;
  }
}

}  // namespace

std::unique_ptr<World> connect(const Environment& environment, const RankOptions& options) {
  if (environment.local_world_size < environment.world_size) {
    return connect_over_hosts(environment, options);
  }
  const auto segment = environment.job_fd >= 0 ? inherited_segment(environment)
                       : environment.world_size > 1
                           ? rendezvous_ranks(environment, options.timeout_s)
                           : SharedSegment::create_shared(1);
  return std::make_unique<ShmWorld>(segment, environment.rank, options);
}

}  // namespace cleave::inline comm
