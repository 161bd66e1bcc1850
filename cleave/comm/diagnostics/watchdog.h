#pragma once
#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cleave/comm/shm/rank_endpoint.h"
#include "cleave/comm/diagnostics/waits.h"

namespace cleave {

/// Stands beside one slow wait: publishes it to the other ranks, and finds the reasons for which it
/// would never end.
class Watchdog {
 public:
  static constexpr std::chrono::milliseconds kPeriod{10};  ///< between two looks, at most

  Watchdog(RankEndpoint& end, const WaitTarget& awaited);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// Throws Error(kPeer) when the job has failed or an awaited rank is dead, Error(kDesync) when an
  /// awaited rank has left or ranks wait for each other in a circle, Error(kTimeout) when the time
  /// is over. Records the failure for all ranks.
  void look();

  /// A message wait goes on from another place of the ring: its time begins anew.
  void note_progress(uint32_t stamp);

 private:
  void leave_out_frozen_time();
  void check_gone(const std::vector<int>& missing);
  void check_cycle();
  void check_time(const std::vector<int>& missing);
  [[nodiscard]] std::string own_place() const;
  [[nodiscard]] std::string kept_log(const std::string& why) const;

  RankEndpoint& end_;
  WaitTarget awaited_;
  std::chrono::steady_clock::time_point began_;  // later by the time that this rank was frozen
  std::chrono::steady_clock::time_point last_look_;
  bool has_seen_left_ = false;
  std::vector<std::pair<int, uint32_t>> suspected_;  // ranks of a circle and their wait epochs
  uint32_t question_ = 0;                            // asked of other hosts about it
};

}  // namespace cleave
