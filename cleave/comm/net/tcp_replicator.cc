#include "cleave/comm/net/tcp_replicator.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <deque>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>
#include <utility>

#include "cleave/base/mutant.h"
#include "cleave/comm/diagnostics/flight_log.h"
#include "cleave/comm/net/frame_decoder.h"
#include "cleave/comm/net/rank_snapshot.h"
#include "cleave/comm/net/tcp.h"

// The way of a collective between hosts:
// 1. A member writes its slot and payload as on one host and moves its stamp. post() then queues a
//    frame for every other member, which points to the payload: nobody writes there before the
//    members have posted again, and they do so only after they have read.
// 2. Whoever queues also sends, as far as the network takes it at once; the mirror's thread sends
//    the rest. So a small collective costs no switch of threads on the sending side.
// 3. The mirror's thread of a member receives into its copy of the segment and wakes who waits there.
// A farewell is a last snapshot, a kBye frame and the end of the sending direction. The peer
// answers with the end of its own, after which the socket holds nothing that closing it could
// destroy.

namespace cleave {
namespace {

// How late a failure may be spread, and how often peers are told where this rank is.
constexpr std::chrono::milliseconds kTick{10};
constexpr std::chrono::milliseconds kBeat{100};
// How long a farewell waits for peers that hear nothing: of a job that failed, of one that is done.
constexpr std::chrono::milliseconds kFailedFarewell{200};
constexpr std::chrono::milliseconds kFarewell{2000};

void set_option(int socket, int level, int option, int value) {
  setsockopt(socket, level, option, &value, sizeof(value));
}

}  // namespace

/// What waits to be sent: a frame and its tail, which is kept here or lies in the segment.
struct TcpReplicator::Outgoing {
  Frame frame{};
  std::vector<std::byte> kept;
  std::span<const std::byte> tail;
  size_t num_sent = 0;  // of frame and tail
};

struct TcpReplicator::Peer {
  Peer(SharedSegment& segment, int self, int number, Descriptor connected)
      : rank(number),
        socket(std::move(connected)),
        address(peer_address(socket.get()).host()),
        copy(segment, self, number),
        heard(Clock::now()) {}

  int rank;
  Descriptor socket;  // of the mirror's thread, which alone closes it
  std::string address;
  FrameDecoder copy;
  bool is_open = true;        // something may still come
  bool was_reported = false;      // of the job's failure
  uint32_t num_answered = 0;  // the last question that was answered
  std::atomic<uint32_t> answered = 0;
  std::atomic<Clock::time_point> heard;

  std::mutex mutex;  // the three below
  std::deque<Outgoing> queue;
  bool may_send = true;
  bool was_left = false;  // by this rank, with a farewell: nothing may follow it
};

TcpReplicator::TcpReplicator(std::shared_ptr<SharedSegment> segment, int rank, std::vector<Descriptor> sockets,
                       double timeout_s)
    : segment_(std::move(segment)), rank_(rank), waker_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  CLEAVE_CHECK(waker_.is_open(), Code::kMemory, "eventfd failed: ", std::strerror(errno));
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
  }
}

TcpReplicator::~TcpReplicator() {
  if (!thread_.joinable()) return;
  is_closing_.store(true);
  wake();
  thread_.join();
}

void TcpReplicator::start() {
  // Signals are for the threads of the program.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void TcpReplicator::announce(uint32_t group) {
  const GroupEntry& entry = segment_->group(group);
  const auto ranks = segment_->group_ranks(entry);
  GroupTail head{};
  std::memcpy(head.name, entry.name, sizeof(head.name));
  head.num_ranks = entry.num_members;
  for (const auto& peer : peers_) {
    if (!peer) continue;
    Outgoing outgoing;
    outgoing.frame.kind = FrameKind::kGroup;
    outgoing.frame.key = entry.key.load();
    outgoing.kept.resize(sizeof(head) + ranks.size_bytes());
    std::memcpy(outgoing.kept.data(), &head, sizeof(head));
    std::memcpy(outgoing.kept.data() + sizeof(head), ranks.data(), ranks.size_bytes());
    put(*peer, std::move(outgoing));
  }
  // After the frame: a snapshot names only groups that were announced.
  const std::lock_guard lock(groups_mutex_);
  groups_.push_back(group);
}

void TcpReplicator::post(uint32_t group, int member, std::span<const SendRange> ranges) {
  const GroupEntry& entry = segment_->group(group);
  const auto ranks = segment_->group_ranks(entry);
  const MemberSlot& own = segment_->member(entry, member);
  const uint32_t stamp = own.stamp.load();
  // The next member first, so that not all send to member 0 at once.
  for (int i = 1; i < entry.num_members; ++i) {
    const auto to = static_cast<size_t>((member + i) % entry.num_members);
    Outgoing outgoing;
    outgoing.frame.kind = FrameKind::kPost;
    outgoing.frame.key = entry.key.load();
    outgoing.frame.number = stamp;
    outgoing.frame.header = own.header[stamp % 2];
    outgoing.frame.note = own.note[stamp % 2];
    outgoing.frame.offset = ranges[to].from;
    outgoing.tail = {segment_->payload(entry, member, stamp % 2) + ranges[to].from, ranges[to].bytes};
    put(*peers_[static_cast<size_t>(ranks[to])], std::move(outgoing));
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
  outgoing.tail = {chunk.data, chunk.bytes};
  put(*peers_[static_cast<size_t>(to)], std::move(outgoing));
}

void TcpReplicator::take(int from, uint32_t number) {
  Outgoing outgoing;
  outgoing.frame.kind = FrameKind::kTake;
  outgoing.frame.number = number;
  put(*peers_[static_cast<size_t>(from)], std::move(outgoing));
}

uint32_t TcpReplicator::ask() {
  const uint32_t question = ++num_questions_;
  for (const auto& peer : peers_) {
    if (!peer) continue;
    Outgoing outgoing;
    outgoing.frame.kind = FrameKind::kAsk;
    outgoing.frame.number = question;
    put(*peer, std::move(outgoing));
  }
  return question;
}

bool TcpReplicator::has_answered(int peer, uint32_t question) const {
  const uint32_t answered = peers_[static_cast<size_t>(peer)]->answered.load();
  return static_cast<int32_t>(answered - question) >= 0;
}

double TcpReplicator::silent_s(int peer) const {
  const auto& other = peers_[static_cast<size_t>(peer)];
  if (!other) return 0;
  return std::chrono::duration<double>(Clock::now() - other->heard.load()).count();
}

void TcpReplicator::wake() const {
  const uint64_t one = 1;
  // It fails only when it is awake a great many times already.
  [[maybe_unused]] const ssize_t written = write(waker_.get(), &one, sizeof(one));
}

void TcpReplicator::put(Peer& peer, Outgoing outgoing) {
  if (!outgoing.kept.empty()) outgoing.tail = outgoing.kept;
  outgoing.frame.bytes = static_cast<uint32_t>(outgoing.tail.size());
  const std::lock_guard lock(peer.mutex);
  if (!peer.may_send || peer.was_left) return;
  peer.queue.push_back(std::move(outgoing));
  flush(peer);
  if (!peer.queue.empty()) wake();
}

/// Sends as much as goes without waiting. The caller holds the peer's mutex.
void TcpReplicator::flush(Peer& peer) {
  while (!peer.queue.empty()) {
    Outgoing& next = peer.queue.front();
    const auto frame = std::as_bytes(std::span(&next.frame, 1));
    const size_t in_frame = std::min(next.num_sent, frame.size());
    std::array<std::span<const std::byte>, 2> parts{frame.subspan(in_frame),
                                                    next.tail.subspan(next.num_sent - in_frame)};
    std::array<iovec, 2> pieces{};
    for (size_t i = 0; i < parts.size(); ++i) {
      pieces[i] = {const_cast<std::byte*>(parts[i].data()), parts[i].size()};
    }
    msghdr message{};
    message.msg_iov = pieces.data();
    message.msg_iovlen = pieces.size();
    const ssize_t sent = sendmsg(peer.socket.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    // A connection that is gone shows itself to the receiving side, which says so to all.
    if (sent < 0) return;
    next.num_sent += static_cast<size_t>(sent);
    if (next.num_sent < frame.size() + next.tail.size()) continue;
    peer.queue.pop_front();
  }
}

void TcpReplicator::run() {
  auto next_beat = Clock::now();
  auto end = Clock::time_point::max();
  while (!is_done() && Clock::now() < end) {
    spread_failure();
    answer_questions();
    if (Clock::now() >= next_beat) {
      beat();
      next_beat = Clock::now() + kBeat;
    }
    if (is_closing_.load() && end == Clock::time_point::max()) {
      spread_failure();
      say_farewell();
      end = Clock::now() + (segment_->is_aborted() ? kFailedFarewell : kFarewell);
    }
    wait_for_events(std::min(Clock::now() + kTick, end));
  }
}

bool TcpReplicator::is_done() const {
  return is_closing_.load() && std::none_of(peers_.begin(), peers_.end(),
                                            [](const auto& peer) { return peer && peer->is_open; });
}

void TcpReplicator::wait_for_events(Clock::time_point until) {
  std::vector<pollfd> polled{{waker_.get(), POLLIN, 0}};
  std::vector<Peer*> asked{nullptr};
  for (const auto& peer : peers_) {
    if (!peer || !peer->is_open) continue;
    const std::lock_guard lock(peer->mutex);
    const bool has_more = peer->may_send && !peer->queue.empty();
    const auto events = static_cast<int16_t>(has_more ? POLLIN | POLLOUT : POLLIN);
    polled.push_back({peer->socket.get(), events, 0});
    asked.push_back(peer.get());
  }
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
  if (poll(polled.data(), polled.size(), static_cast<int>(std::max<int64_t>(left, 0))) <= 0) return;
  if (polled[0].revents != 0) {
    uint64_t times = 0;
    [[maybe_unused]] const ssize_t got = read(waker_.get(), &times, sizeof(times));
  }
  for (size_t i = 1; i < polled.size(); ++i) {
    if ((polled[i].revents & POLLOUT) != 0) {
      const std::lock_guard lock(asked[i]->mutex);
      flush(*asked[i]);
    }
    if ((polled[i].revents & ~POLLOUT) != 0) receive(*asked[i]);
  }
}

void TcpReplicator::receive(Peer& peer) {
  constexpr int kNumPieces = 64;  // then the other peers have their turn
  for (int i = 0; i < kNumPieces; ++i) {
    const auto room = peer.copy.room();
    const ssize_t got = recv(peer.socket.get(), room.data(), room.size(), MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) return lose(peer, end_of(peer, got));
    peer.heard.store(Clock::now());
    try {
      peer.copy.advance(static_cast<size_t>(got));
    } catch (const Error& error) {
      record_failure(peer, error);
      if (error.code() == Code::kDesync) continue;
      // Bytes that make no sense: nothing after them can.
      spread_failure();
      return lose(peer, error);
    }
    peer.answered.store(peer.copy.answered());
    if (!peer.copy.has_ended()) continue;
    // Answers the farewell; the end of the connection comes next.
    const std::lock_guard lock(peer.mutex);
    if (std::exchange(peer.may_send, false)) shutdown(peer.socket.get(), SHUT_WR);
    peer.queue.clear();
  }
}

/// What a connection that gave nothing says of its rank, by what recv() returned and by errno.
Error TcpReplicator::end_of(const Peer& peer, ssize_t got) const {
  const bool is_dead = got == 0 || errno == ECONNRESET;
  const std::string how = is_dead ? "died" : str("was lost (", std::strerror(errno), ")");
  return {Code::kPeer, str("rank ", peer.rank, " (pid ", segment_->rank(peer.rank).pid.load(), " at ",
                           peer.address, ") ", how, ", last seen ",
                           describe_place(*segment_, peer.rank), describe_step(*segment_, peer.rank))};
}

/// The connection has ended, or makes no sense any more.
void TcpReplicator::lose(Peer& peer, const Error& cause) {
  if (mutant_enabled("mirror.never_lost")) return;
  peer.is_open = false;
  const std::lock_guard lock(peer.mutex);
  peer.may_send = false;
  peer.queue.clear();
  peer.socket = Descriptor();
  if (!peer.copy.has_ended() && !peer.was_left) record_failure(peer, cause);
}

void TcpReplicator::record_failure(const Peer& peer, const Error& cause) {
  Abort record{.rank = peer.rank, .code = cause.code(), .group = "", .text = cause.what()};
  record.step = segment_->rank(peer.rank).step.load();
  segment_->abort(record);
}

void TcpReplicator::answer_questions() {
  for (const auto& peer : peers_) {
    if (peer && peer->is_open && peer->copy.asked() != peer->num_answered) put_snapshot(*peer);
  }
}

void TcpReplicator::beat() {
  for (const auto& peer : peers_) {
    if (!peer || !peer->is_open) continue;
    {
      // What a peer does not read is not worth repeating.
      const std::lock_guard lock(peer->mutex);
      if (!peer->queue.empty()) continue;
    }
    put_snapshot(*peer);
  }
}

void TcpReplicator::put_snapshot(Peer& peer) {
  std::vector<uint32_t> groups;
  {
    const std::lock_guard lock(groups_mutex_);
    groups = groups_;
  }
  Outgoing outgoing;
  outgoing.frame.kind = FrameKind::kSnapshot;
  outgoing.frame.number = peer.num_answered = peer.copy.asked();
  outgoing.kept = take_snapshot(*segment_, rank_, groups);
  put(peer, std::move(outgoing));
}

void TcpReplicator::spread_failure() {
  if (!segment_->is_aborted()) return;
  const Abort cause = segment_->aborted().value_or(Abort{});
  AbortTail told{};
  told.step = cause.step;
  told.sequence = cause.sequence;
  told.rank = cause.rank;
  told.code = static_cast<int32_t>(cause.code);
  told.op = cause.op;
  cause.group.copy(told.group, sizeof(told.group) - 1);
  cause.text.copy(told.text, sizeof(told.text) - 1);
  const auto* begin = reinterpret_cast<const std::byte*>(&told);
  for (const auto& peer : peers_) {
    if (!peer || std::exchange(peer->was_reported, true)) continue;
    Outgoing outgoing;
    outgoing.frame.kind = FrameKind::kAbort;
    outgoing.kept.assign(begin, begin + sizeof(told));
    put(*peer, std::move(outgoing));
  }
}

void TcpReplicator::say_farewell() {
  for (const auto& peer : peers_) {
    if (!peer || !peer->is_open) continue;
    put_snapshot(*peer);
    Outgoing outgoing;
    outgoing.frame.kind = FrameKind::kBye;
    put(*peer, std::move(outgoing));
    const std::lock_guard lock(peer->mutex);
    peer->was_left = true;
  }
}

}  // namespace cleave
