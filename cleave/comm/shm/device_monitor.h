#pragma once
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "cleave/comm/api/device.h"
#include "cleave/comm/shm/rank_endpoint.h"

namespace cleave::inline comm {

/// Ends a rank's collectives on its device when the job fails. A rank that waits for its device, to
/// read a loss for example, does not look at the shared segment, so a thread does.
class DeviceMonitor {
 public:
  /// `job` and `host` are this rank's access to its segments; `host` is nullptr if there is one.
  DeviceMonitor(std::shared_ptr<RankEndpoint> job, std::shared_ptr<RankEndpoint> host);
  ~DeviceMonitor();
  DeviceMonitor(const DeviceMonitor&) = delete;
  DeviceMonitor& operator=(const DeviceMonitor&) = delete;

  /// Watches a group until remove(), which must come before its end.
  void add(DeviceGroup& group);
  void remove(DeviceGroup& group);

 private:
  void run();
  /// Looks for dead ranks and failed groups. Returns whether the job has failed.
  [[nodiscard]] bool has_failed();

  std::shared_ptr<RankEndpoint> job_, host_;
  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::vector<DeviceGroup*> groups_;
  bool is_ending_ = false;
  std::thread thread_;  // last, because it uses the other members
};

}  // namespace cleave::inline comm
