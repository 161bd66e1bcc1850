#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cleave/comm/api/device.h"
#include "cleave/comm/api/world.h"
#include "cleave/comm/shm/mailbox.h"
#include "cleave/comm/shm/rank_endpoint.h"

namespace cleave {

/// The world of ranks that share a segment, or that have replicas of one which a TcpReplicator
/// keeps consistent.
class ShmWorld : public World {
 public:
  ShmWorld(std::shared_ptr<SharedSegment> segment, int rank, const RankOptions& options,
           std::unique_ptr<TcpReplicator> replicator = nullptr);
  /// Waits for the started calls; if the job has failed, they end immediately.
  ~ShmWorld() override { endpoint_->end_call_threads(); }

  [[nodiscard]] int rank() const override { return endpoint_->rank(); }
  [[nodiscard]] int size() const override { return endpoint_->segment().num_ranks(); }
  std::shared_ptr<Group> group(const std::vector<int>& ranks, const std::string& name) override;
  void abort(const Error& cause) override { endpoint_->abort(cause); }
  [[nodiscard]] bool ranks_are_threads() const override {
    return endpoint_->segment().is_of_threads();
  }
  void note_step(int64_t step) override {
    endpoint_->slot().step.store(step, std::memory_order_relaxed);
  }
  void note_resume_hint(std::string_view text) override {
    endpoint_->segment().note_resume_hint(text);
  }

  /// Groups made from now on also accept memory of this rank's device. Either all ranks have a
  /// device or none.
  void use_device(std::shared_ptr<Device> device) { device_ = std::move(device); }

 private:
  std::shared_ptr<RankEndpoint> endpoint_;
  std::shared_ptr<Mailbox> mailbox_;
  std::shared_ptr<Device> device_;                  // nullptr: CPU memory only
  std::map<std::vector<int>, int64_t> num_groups_;  // made so far, by their ranks
};

}  // namespace cleave
