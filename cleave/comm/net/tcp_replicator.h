#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "cleave/comm/bootstrap/rendezvous_dir.h"
#include "cleave/comm/net/frame.h"
#include "cleave/comm/shm/shared_segment.h"

namespace cleave::inline comm {

/// The range of a member's payload that is sent to another member.
struct SendRange {
  uint64_t from = 0, bytes = 0;
};

/// Replicates a shared segment between ranks on several hosts: sends what this rank writes to its
/// peers' replicas, and applies what they write to its own, over one TCP connection per peer. Its
/// thread receives, sends this rank's state up to ten times a second, and broadcasts the first
/// failure. A peer whose connection ends without a kClose frame is a failure.
///
/// Thread safe; no function waits for a peer.
class TcpReplicator {
 public:
  /// `sockets`, by rank, are connected to the replicators of the other ranks; this rank's entry is
  /// not open. A connection whose peer acknowledges nothing for `timeout_s` counts as lost. `host`:
  /// another segment, of this host's ranks; a failure in one of the two is copied to the other.
  TcpReplicator(std::shared_ptr<SharedSegment> segment, int rank, std::vector<Descriptor> sockets,
                double timeout_s, std::shared_ptr<SharedSegment> host = nullptr);
  /// Sends kClose to all peers, after the failure of the job if there is one, and waits briefly
  /// until they have received it.
  ~TcpReplicator();
  TcpReplicator(const TcpReplicator&) = delete;
  TcpReplicator& operator=(const TcpReplicator&) = delete;

  /// Starts the receiving thread.
  void start();

  /// Announces to all peers a group (index in the segment) that this rank has joined.
  void announce(uint32_t group);
  /// Sends the newest post of this rank to the other members, to each its range of the payload,
  /// which must not change until all members have posted again. `ranges` has one entry per member.
  void post(uint32_t group, int member, std::span<const SendRange> ranges);
  /// Sends a chunk of the message ring to `to`. The chunk must not change until it is acknowledged.
  void send(int to, uint32_t number);
  /// Acknowledges to the sender that all chunks before `number` have been read.
  void acknowledge(int from, uint32_t number);

  /// Requests snapshots from all peers; returns the request's number.
  uint32_t request_snapshots();
  /// Whether the segment's state of a peer is from after this request.
  [[nodiscard]] bool has_snapshot_since(int peer, uint32_t request) const;

  /// Seconds since the last bytes from a peer; 0 for this rank.
  [[nodiscard]] double seconds_silent(int peer) const;

 private:
  struct Peer;
  struct Outgoing;
  using Clock = std::chrono::steady_clock;

  void run();
  void wait_for_events(Clock::time_point until);
  void receive(Peer& peer);
  [[nodiscard]] Error disconnect_error(const Peer& peer, ssize_t received) const;
  void disconnect(Peer& peer, const Error& cause);
  void record_failure(const Peer& peer, const Error& cause);
  void enqueue(Peer& peer, Outgoing outgoing);
  void flush(Peer& peer) const;
  void answer_requests();
  void send_heartbeats();
  /// Sends this rank's state to the open peers of which wants(peer) is true.
  template <class Wants>
  void send_snapshot(const Wants& wants);
  void broadcast_failure();
  void send_close();
  [[nodiscard]] bool is_done() const;
  void wake() const;
  /// Has epoll report events of `fd` as those of `peer`; nullptr for the wake event.
  void watch(int operation, const Descriptor& fd, uint32_t events, Peer* peer) const;

  std::shared_ptr<SharedSegment> segment_, host_;
  int rank_;
  std::vector<std::unique_ptr<Peer>> peers_;  // by rank; nullptr for this rank
  Descriptor epoll_, wake_event_;
  mutable std::mutex groups_mutex_;
  std::vector<uint32_t> groups_;  // joined by this rank
  std::atomic<uint32_t> num_requests_ = 0;
  std::atomic<bool> is_closing_ = false;
  bool has_request_ = false;  // for a snapshot; only the replicator's thread uses it
  std::thread thread_;
};

}  // namespace cleave::inline comm
