#include "cleave/comm/shm/device_monitor.h"

#include <chrono>
#include <utility>

#include "cleave/comm/diagnostics/watchdog.h"

namespace cleave::inline comm {
namespace {

constexpr std::chrono::milliseconds kMonitorPeriod{20};

}  // namespace

DeviceMonitor::DeviceMonitor(std::shared_ptr<RankEndpoint> job, std::shared_ptr<RankEndpoint> host)
    : job_(std::move(job)), host_(std::move(host)), thread_([this] { run(); }) {}

DeviceMonitor::~DeviceMonitor() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void DeviceMonitor::add(DeviceGroup& group) {
  const std::lock_guard lock(mutex_);
  groups_.push_back(&group);
}

void DeviceMonitor::remove(DeviceGroup& group) {
  const std::lock_guard lock(mutex_);
  std::erase(groups_, &group);
}

bool DeviceMonitor::has_failed() {
  for (const auto& endpoint : {job_, host_}) {
    if (endpoint == nullptr) continue;
    for (int rank = 0; rank < endpoint->segment().num_ranks(); ++rank) {
      if (rank != endpoint->rank()) report_if_gone(*endpoint, rank);
    }
  }
  for (DeviceGroup* group : groups_) {
    if (const std::string why = group->failure(); !why.empty()) {
      job_->abort(Error(Code::kPeer, why));
    }
  }
  if (host_) SharedSegment::share_failure(job_->segment(), host_->segment());
  return job_->segment().is_aborted();
}

void DeviceMonitor::run() {
  std::unique_lock lock(mutex_);
  bool is_over = false;
  while (!changed_.wait_for(lock, kMonitorPeriod, [&] { return is_ending_; })) {
    // Without groups there is nothing to end, and waits of the rank itself report failures.
    if (groups_.empty() || is_over || !has_failed()) continue;
    for (DeviceGroup* group : groups_) group->abort();
    is_over = true;
  }
}

}  // namespace cleave::inline comm
