#include "cleave/comm/net/tcp_replicator.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <deque>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>
#include <utility>

#include "cleave/comm/diagnostics/flight_log.h"
#include "cleave/comm/net/frame.h"
#include "cleave/comm/net/frame_decoder.h"
#include "cleave/comm/net/tcp.h"

// How a collective runs between hosts:
// 1. A member writes its slot and payload as on one host and advances its stamp. post() then queues
//    a frame for every other member. The frame points to the payload: nobody overwrites it before
//    the members have posted again, which they do only after they have read it.
// 2. The thread that queues a frame also sends it as far as the socket accepts without blocking;
// the
//    replicator's thread sends the rest. So a small collective needs no thread switch to send.
// 3. The receiving member's replicator thread writes the data to its replica of the segment and
//    wakes the threads that wait for it.
// To close a connection, a rank sends a last snapshot and a kClose frame. The peer answers kClose
// with shutdown(SHUT_WR). After that the socket holds no unread data that close() could discard.

namespace cleave::inline comm {
namespace {

// Longest delay before a failure is broadcast.
constexpr std::chrono::milliseconds kPollPeriod{10};
// How long closing waits for unresponsive peers, after a failure and after success.
constexpr std::chrono::milliseconds kFailedCloseTimeout{200};
constexpr std::chrono::milliseconds kCloseTimeout{2000};

void set_option(int socket, int level, int option, int value) {
  setsockopt(socket, level, option, &value, sizeof(value));
}

/// The period of the snapshots to all peers. In large jobs it grows with the number of ranks, so
/// that a rank sends and receives at most 5,120 snapshots, about 8 MB, a second.
std::chrono::milliseconds heartbeat_of(int num_ranks) {
  constexpr int64_t kShortest = 100, kNumRanks = 512;
  return std::chrono::milliseconds(std::max(kShortest, kShortest * num_ranks / kNumRanks));
}

}  // namespace

/// A queued frame. Its body is in `body_copy` or in the segment.
struct TcpReplicator::Outgoing {
  Frame frame{};
  std::vector<std::byte> body_copy;
  std::span<const std::byte> body;
  size_t num_sent = 0;  // bytes of frame and body
};

struct TcpReplicator::Peer {
  Peer(SharedSegment& segment, int self, int number, Descriptor connected)
      : rank(number),
        socket(std::move(connected)),
        address(peer_address(socket.get()).host()),
        decoder(segment, self, number),
        last_received(Clock::now()) {}

  int rank;
  Descriptor socket;  // only the replicator's thread closes it
  std::string address;
  FrameDecoder decoder;
  bool is_open = true;                    // may still send something
  bool failure_sent = false;              // the job's failure was sent to it
  uint32_t num_answered = 0;              // the peer's last request that this rank answered
  std::atomic<uint32_t> last_answer = 0;  // this rank's last request that the peer answered
  std::atomic<Clock::time_point> last_received;

  std::mutex mutex;  // guards the four members below
  std::deque<Outgoing> queue;
  bool awaits_space = false;  // epoll reports when the socket accepts more
  bool may_send = true;
  bool sent_close = false;  // nothing may follow kClose
};

TcpReplicator::TcpReplicator(std::shared_ptr<SharedSegment> segment, int rank,
                             std::vector<Descriptor> sockets, double timeout_s,
                             std::shared_ptr<SharedSegment> host)
    : segment_(std::move(segment)),
      host_(std::move(host)),
      rank_(rank),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      wake_event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  CLEAVE_CHECK(epoll_.is_open() && wake_event_.is_open(), Code::kMemory,
               "epoll or eventfd failed: ", std::strerror(errno));
  watch(EPOLL_CTL_ADD, wake_event_, EPOLLIN, nullptr);
  for (size_t peer = 0; peer < sockets.size(); ++peer) {
    if (!sockets[peer].is_open()) {
      peers_.push_back(nullptr);
      continue;
    }
    const int socket = sockets[peer].get();
    set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
    set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT,
               static_cast<int>(std::clamp(timeout_s, 0.1, 1e6) * 1000));
    peers_.push_back(
        std::make_unique<Peer>(*segment_, rank_, static_cast<int>(peer), std::move(sockets[peer])));
    watch(EPOLL_CTL_ADD, peers_.back()->socket, EPOLLIN, peers_.back().get());
  }
}

void TcpReplicator::watch(int operation, const Descriptor& fd, uint32_t events, Peer* peer) const {
  epoll_event event{};
  event.events = events;
  event.data.ptr = peer;
  CLEAVE_CHECK(epoll_ctl(epoll_.get(), operation, fd.get(), &event) == 0, Code::kMemory,
               "epoll_ctl failed: ", std::strerror(errno));
}

TcpReplicator::~TcpReplicator() {
  if (!thread_.joinable()) return;
  is_closing_.store(true);
  wake();
  thread_.join();
}

void TcpReplicator::start() {
  // Signals must be handled by the program's own threads, so block them in this one.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void TcpReplicator::announce(uint32_t group) {
  const GroupEntry& entry = segment_->group(group);
  const auto ranks = segment_->group_ranks(entry);
  GroupBody head{};
  std::memcpy(head.name, entry.name, sizeof(head.name));
  head.num_ranks = entry.num_members;
  for (const auto& peer : peers_) {
    if (!peer) continue;
    Outgoing outgoing;
    outgoing.frame.kind = FrameKind::kGroup;
    outgoing.frame.key = entry.key.load();
    outgoing.body_copy.resize(sizeof(head) + ranks.size_bytes());
    std::memcpy(outgoing.body_copy.data(), &head, sizeof(head));
    std::memcpy(outgoing.body_copy.data() + sizeof(head), ranks.data(), ranks.size_bytes());
    enqueue(*peer, std::move(outgoing));
  }
  // After the frame: a snapshot may only name announced groups.
  const std::lock_guard lock(groups_mutex_);
  groups_.push_back(group);
}

void TcpReplicator::post(uint32_t group, int member, std::span<const SendRange> ranges) {
  const GroupEntry& entry = segment_->group(group);
  const auto ranks = segment_->group_ranks(entry);
  const MemberSlot& own = segment_->member(entry, member);
  const uint32_t stamp = own.stamp.load();
  // The next member first, so that not all send to member 0 at the same time.
  for (int i = 1; i < entry.num_members; ++i) {
    const auto to = static_cast<size_t>((member + i) % entry.num_members);
    Outgoing outgoing;
    outgoing.frame.kind = FrameKind::kPost;
    outgoing.frame.key = entry.key.load();
    outgoing.frame.number = stamp;
    outgoing.frame.header = own.header[stamp % 2];
    outgoing.frame.note = own.note[stamp % 2];
    outgoing.frame.offset = ranges[to].from;
    outgoing.body = {segment_->payload(entry, member, stamp % 2) + ranges[to].from,
                     ranges[to].bytes};
    enqueue(*peers_[static_cast<size_t>(ranks[to])], std::move(outgoing));
  }
}

void TcpReplicator::send(int to, uint32_t number) {
  const MessageChunk& chunk = segment_->ring(rank_, to).chunks[number % kNumChunks];
  Outgoing outgoing;
  outgoing.frame.kind = FrameKind::kChunk;
  outgoing.frame.key = segment_->group(chunk.header.group).key.load();
  outgoing.frame.number = number;
  outgoing.frame.offset = chunk.message_bytes;
  outgoing.frame.header = chunk.header;
  outgoing.frame.note = chunk.note;
  outgoing.body = {chunk.data, chunk.bytes};
  enqueue(*peers_[static_cast<size_t>(to)], std::move(outgoing));
}

void TcpReplicator::acknowledge(int from, uint32_t number) {
  Outgoing outgoing;
  outgoing.frame.kind = FrameKind::kAck;
  outgoing.frame.number = number;
  enqueue(*peers_[static_cast<size_t>(from)], std::move(outgoing));
}

uint32_t TcpReplicator::request_snapshots() {
  const uint32_t request = ++num_requests_;
  for (const auto& peer : peers_) {
    if (!peer) continue;
    Outgoing outgoing;
    outgoing.frame.kind = FrameKind::kSnapshotRequest;
    outgoing.frame.number = request;
    enqueue(*peer, std::move(outgoing));
  }
  return request;
}

bool TcpReplicator::has_snapshot_since(int peer, uint32_t request) const {
  const uint32_t answered = peers_[static_cast<size_t>(peer)]->last_answer.load();
  return static_cast<int32_t>(answered - request) >= 0;
}

double TcpReplicator::seconds_silent(int peer) const {
  const auto& other = peers_[static_cast<size_t>(peer)];
  if (!other) return 0;
  return std::chrono::duration<double>(Clock::now() - other->last_received.load()).count();
}

void TcpReplicator::wake() const {
  const uint64_t one = 1;
  // Fails only if the counter is full, and then the thread is already awake.
  [[maybe_unused]] const ssize_t written = write(wake_event_.get(), &one, sizeof(one));
}

void TcpReplicator::enqueue(Peer& peer, Outgoing outgoing) {
  if (!outgoing.body_copy.empty()) outgoing.body = outgoing.body_copy;
  outgoing.frame.bytes = static_cast<uint32_t>(outgoing.body.size());
  const std::lock_guard lock(peer.mutex);
  if (!peer.may_send || peer.sent_close) return;
  peer.queue.push_back(std::move(outgoing));
  flush(peer);
}

/// Sends as much as the socket accepts without blocking; the replicator's thread sends the rest.
/// The caller holds the peer's mutex.
void TcpReplicator::flush(Peer& peer) const {
  while (!peer.queue.empty()) {
    Outgoing& next = peer.queue.front();
    const auto frame = std::as_bytes(std::span(&next.frame, 1));
    const size_t in_frame = std::min(next.num_sent, frame.size());
    std::array<std::span<const std::byte>, 2> parts{frame.subspan(in_frame),
                                                    next.body.subspan(next.num_sent - in_frame)};
    std::array<iovec, 2> pieces{};
    for (size_t i = 0; i < parts.size(); ++i) {
      pieces[i] = {const_cast<std::byte*>(parts[i].data()), parts[i].size()};
    }
    msghdr message{};
    message.msg_iov = pieces.data();
    message.msg_iovlen = pieces.size();
    const ssize_t sent = sendmsg(peer.socket.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    // A lost connection is detected by receive(), which reports it.
    if (sent < 0) break;
    next.num_sent += static_cast<size_t>(sent);
    if (next.num_sent < frame.size() + next.body.size()) continue;
    peer.queue.pop_front();
  }
  const bool awaits_space = !peer.queue.empty();
  if (awaits_space == std::exchange(peer.awaits_space, awaits_space)) return;
  watch(EPOLL_CTL_MOD, peer.socket, awaits_space ? EPOLLIN | EPOLLOUT : EPOLLIN, &peer);
}

void TcpReplicator::run() {
  const auto heartbeat = heartbeat_of(segment_->num_ranks());
  auto next_heartbeat = Clock::now();
  auto end = Clock::time_point::max();
  while (!is_done() && Clock::now() < end) {
    broadcast_failure();
    if (std::exchange(has_request_, false)) answer_requests();
    if (Clock::now() >= next_heartbeat) {
      send_heartbeats();
      next_heartbeat = Clock::now() + heartbeat;
    }
    if (is_closing_.load() && end == Clock::time_point::max()) {
      broadcast_failure();
      send_close();
      end = Clock::now() + (segment_->is_aborted() ? kFailedCloseTimeout : kCloseTimeout);
    }
    wait_for_events(std::min(Clock::now() + kPollPeriod, end));
  }
}

bool TcpReplicator::is_done() const {
  return is_closing_.load() && std::none_of(peers_.begin(), peers_.end(),
                                            [](const auto& peer) { return peer && peer->is_open; });
}

void TcpReplicator::wait_for_events(Clock::time_point until) {
  std::array<epoll_event, 256> events{};
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
  const int count = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()),
                               static_cast<int>(std::max<int64_t>(left, 0)));
  for (int i = 0; i < count; ++i) {
    const epoll_event& event = events[static_cast<size_t>(i)];
    auto* const peer = static_cast<Peer*>(event.data.ptr);
    if (peer == nullptr) {
      uint64_t wakes = 0;
      [[maybe_unused]] const ssize_t got = read(wake_event_.get(), &wakes, sizeof(wakes));
      continue;
    }
    if ((event.events & EPOLLOUT) != 0) {
      const std::lock_guard lock(peer->mutex);
      flush(*peer);
    }
    if ((event.events & ~EPOLLOUT) != 0) receive(*peer);
  }
}

void TcpReplicator::receive(Peer& peer) {
  constexpr int kMaxReads = 64;  // then the other peers have their turn
  for (int i = 0; i < kMaxReads; ++i) {
    const auto buffer = peer.decoder.receive_buffer();
    const ssize_t got = recv(peer.socket.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) return disconnect(peer, disconnect_error(peer, got));
    peer.last_received.store(Clock::now());
    try {
      peer.decoder.advance(static_cast<size_t>(got));
    } catch (const Error& error) {
      record_failure(peer, error);
      if (error.code() == Code::kDesync) continue;
      // After an invalid frame the rest of the stream cannot be decoded.
      broadcast_failure();
      return disconnect(peer, error);
    }
    peer.last_answer.store(peer.decoder.last_answer());
    has_request_ |= peer.decoder.last_request() != peer.num_answered;
    if (!peer.decoder.has_ended()) continue;
    // Answer kClose by closing this side; the end of the connection follows.
    const std::lock_guard lock(peer.mutex);
    if (std::exchange(peer.may_send, false)) shutdown(peer.socket.get(), SHUT_WR);
    peer.queue.clear();
  }
}

/// The error for a connection that has ended. `received` is what recv() returned, with errno.
Error TcpReplicator::disconnect_error(const Peer& peer, ssize_t received) const {
  const bool is_dead = received == 0 || errno == ECONNRESET;
  const std::string how = is_dead ? "died" : str("was lost (", std::strerror(errno), ")");
  const int pid = segment_->rank(peer.rank).pid.load();
  if (pid == 0) {  // its first snapshot has not arrived
    return {Code::kPeer, str("rank ", peer.rank, " (at ", peer.address, ") ", how,
                             " right after the rendezvous; its own messages tell the cause")};
  }
  return {Code::kPeer, str("rank ", peer.rank, " (pid ", pid, " at ", peer.address, ") ", how,
                           ", last seen ", describe_place(*segment_, host_.get(), peer.rank),
                           describe_step(*segment_, peer.rank))};
}

/// Closes a connection that has ended or is invalid. A failure, unless one side has sent kClose.
void TcpReplicator::disconnect(Peer& peer, const Error& cause) {
  peer.is_open = false;
  const std::lock_guard lock(peer.mutex);
  peer.may_send = false;
  peer.queue.clear();
  peer.socket = Descriptor();
  if (!peer.decoder.has_ended() && !peer.sent_close) record_failure(peer, cause);
}

void TcpReplicator::record_failure(const Peer& peer, const Error& cause) {
  Abort record{.rank = peer.rank, .code = cause.code(), .group = "", .text = cause.what()};
  record.step = segment_->rank(peer.rank).step.load();
  segment_->abort(record);
}

void TcpReplicator::answer_requests() {
  send_snapshot([](const Peer& peer) { return peer.decoder.last_request() != peer.num_answered; });
}

void TcpReplicator::send_heartbeats() {
  send_snapshot([](Peer& peer) {
    // Do not queue another snapshot for a peer that does not read.
    const std::lock_guard lock(peer.mutex);
    return peer.queue.empty();
  });
}

/// Takes one snapshot for all peers, after the requests that it answers. A snapshot reads the
/// channels of every rank, so one for each peer would take time quadratic in the number of ranks.
template <class Wants>
void TcpReplicator::send_snapshot(const Wants& wants) {
  std::vector<std::byte> state;
  for (const auto& peer : peers_) {
    if (!peer || !peer->is_open || !wants(*peer)) continue;
    if (state.empty()) {
      const std::lock_guard lock(groups_mutex_);
      state = take_snapshot(*segment_, rank_, groups_);
    }
    Outgoing outgoing;
    outgoing.frame.kind = FrameKind::kSnapshot;
    outgoing.frame.number = peer->num_answered = peer->decoder.last_request();
    outgoing.body_copy = state;
    enqueue(*peer, std::move(outgoing));
  }
}

void TcpReplicator::broadcast_failure() {
  if (host_) SharedSegment::share_failure(*segment_, *host_);
  if (!segment_->is_aborted()) return;
  const Abort cause = segment_->aborted().value_or(Abort{});
  AbortBody body{};
  body.step = cause.step;
  body.sequence = cause.sequence;
  body.rank = cause.rank;
  body.code = static_cast<int32_t>(cause.code);
  body.op = cause.op;
  cause.group.copy(body.group, sizeof(body.group) - 1);
  cause.text.copy(body.text, sizeof(body.text) - 1);
  const auto* begin = reinterpret_cast<const std::byte*>(&body);
  for (const auto& peer : peers_) {
    if (!peer || std::exchange(peer->failure_sent, true)) continue;
    Outgoing outgoing;
    outgoing.frame.kind = FrameKind::kAbort;
    outgoing.body_copy.assign(begin, begin + sizeof(body));
    enqueue(*peer, std::move(outgoing));
  }
}

void TcpReplicator::send_close() {
  send_snapshot([](const Peer&) { return true; });
  for (const auto& peer : peers_) {
    if (!peer || !peer->is_open) continue;
    Outgoing outgoing;
    outgoing.frame.kind = FrameKind::kClose;
    enqueue(*peer, std::move(outgoing));
    const std::lock_guard lock(peer->mutex);
    peer->sent_close = true;
  }
}

}  // namespace cleave::inline comm
