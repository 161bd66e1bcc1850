#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "cleave/comm/net/frame.h"
#include "cleave/comm/shm/shared_segment.h"
#include "cleave/comm/bootstrap/rendezvous_dir.h"

namespace cleave {

/// Bytes of a member's payload that another member is given.
struct SendRange {
  uint64_t from = 0, bytes = 0;
};

/// Keeps the copies of a shared segment alike on several hosts: carries what this rank writes to its
/// peers' copies, and what they write to its own, over one TCP connection each. A thread of its own
/// receives, tells how far this rank is ten times a second, and spreads the first failure; a peer
/// whose connection ends without a farewell is itself a failure.
///
/// The functions may be called from any thread; none of them waits for a peer.
class TcpReplicator {
 public:
  /// `sockets` by rank, connected to the mirrors of the other ranks; the own one is not open. A
  /// network that swallows everything for `timeout_s` counts as an ended connection.
  TcpReplicator(std::shared_ptr<SharedSegment> segment, int rank, std::vector<Descriptor> sockets,
             double timeout_s);
  /// Says farewell: with the failure of the job, if any. Waits a moment for peers to hear it.
  ~TcpReplicator();
  TcpReplicator(const TcpReplicator&) = delete;
  TcpReplicator& operator=(const TcpReplicator&) = delete;

  /// Begins to listen to the peers.
  void start();

  /// Tells all peers of a group that this rank has joined (index in the segment).
  void announce(uint32_t group);
  /// Carries the newest post of this rank to the other members; each gets its range of the payload,
  /// which must stay until the members have posted again. No ranges are empty ranges.
  void post(uint32_t group, int member, std::span<const SendRange> ranges);
  /// Carries a chunk to the ring's other end, where it must stay until it was taken.
  void send(int to, uint32_t number);
  /// Tells the sender that all chunks before `number` are taken.
  void take(int from, uint32_t number);

  /// Asks all peers where they are; returns the question's number.
  uint32_t ask();
  /// Whether what the segment says of a peer is from after this question.
  [[nodiscard]] bool has_answered(int peer, uint32_t question) const;

  /// Seconds since the last sign of life of a peer; 0 for this rank.
  [[nodiscard]] double silent_s(int peer) const;

 private:
  struct Peer;
  struct Outgoing;
  using Clock = std::chrono::steady_clock;

  void run();
  void wait_for_events(Clock::time_point until);
  void receive(Peer& peer);
  [[nodiscard]] Error end_of(const Peer& peer, ssize_t got) const;
  void lose(Peer& peer, const Error& cause);
  void record_failure(const Peer& peer, const Error& cause);
  void put(Peer& peer, Outgoing outgoing);
  static void flush(Peer& peer);
  void answer_questions();
  void beat();
  void put_snapshot(Peer& peer);
  void spread_failure();
  void say_farewell();
  [[nodiscard]] bool is_done() const;
  void wake() const;

  std::shared_ptr<SharedSegment> segment_;
  int rank_;
  std::vector<std::unique_ptr<Peer>> peers_;  // by rank; the own one is nullptr
  Descriptor waker_;
  mutable std::mutex groups_mutex_;
  std::vector<uint32_t> groups_;  // joined by this rank
  std::atomic<uint32_t> num_questions_ = 0;
  std::atomic<bool> is_closing_ = false;
  std::thread thread_;
};

}  // namespace cleave
