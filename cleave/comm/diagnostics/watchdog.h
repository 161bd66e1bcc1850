#pragma once
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cleave/comm/shm/rank_endpoint.h"
#include "cleave/comm/shm/shared_segment.h"

namespace cleave::inline comm {

/// What a rank waits for.
struct WaitTarget {
  WaitKind kind = WaitKind::kGroup;
  uint32_t group = 0;  ///< index in the shared segment
  uint32_t stamp =
      0;          ///< that all members must reach; for messages: the ring end that must advance
  int peer = -1;  ///< world rank, for messages
};

/// The world ranks that `rank` still waits for; empty once the wait is satisfied.
std::vector<int> missing_ranks(const SharedSegment& segment, int rank, const WaitTarget& awaited);

/// A rank's current wait and its epoch; nullopt if it does not wait. A rank with several threads
/// may wait in one and work in another (RankSlot::uses_many_threads).
std::optional<std::pair<WaitTarget, uint32_t>> wait_of(const SharedSegment& segment, int rank);

/// Records the job's failure if `rank` has died or ended by an exception; returns whether it has.
bool report_if_gone(RankEndpoint& endpoint, int rank);

/// Writes the flight log into options().flight_log_folder, because of `why`. Returns "; flight log:
/// PATH", or "; " and why it could not be written, or "" without a folder.
std::string save_flight_log(const RankEndpoint& endpoint, const std::string& why);

/// Watchdog for one blocked wait: publishes the wait to the other ranks and detects dead peers,
/// deadlock and timeout.
class Watchdog {
 public:
  static constexpr std::chrono::milliseconds kPeriod{10};  ///< longest time between two checks

  Watchdog(RankEndpoint& endpoint, const WaitTarget& awaited);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// Throws Error(kPeer) if the job has failed or an awaited rank is dead, Error(kDesync) if an
  /// awaited rank has left or is in a deadlock cycle with this one, Error(kTimeout) at the timeout.
  /// Records the failure for all ranks.
  void check();

  /// Restarts the timeout of a message wait whose ring end has moved to `stamp`.
  void note_progress(uint32_t stamp);

 private:
  void exclude_frozen_time();
  void check_gone(const std::vector<int>& missing);
  void check_cycle();
  void check_time(const std::vector<int>& missing);
  [[nodiscard]] std::string own_place() const;

  RankEndpoint& endpoint_;
  WaitTarget awaited_;
  std::chrono::steady_clock::time_point began_;  // plus the time for which this rank was frozen
  std::chrono::steady_clock::time_point last_check_;
  bool has_seen_left_ = false;
  std::vector<std::pair<int, uint32_t>> suspected_;  // ranks of a cycle and their wait epochs
  uint32_t snapshot_request_ = 0;                    // sent to the other hosts about it
};

}  // namespace cleave::inline comm
