#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cleave/comm/api/device.h"
#include "cleave/comm/shm/mailbox.h"
#include "cleave/comm/shm/rank_endpoint.h"
#include "cleave/comm/api/world.h"

namespace cleave {

/// The world of ranks that share a shared segment, or have copies of one that a mirror keeps alike.
class ShmWorld : public World {
 public:
  ShmWorld(std::shared_ptr<SharedSegment> segment, int rank, const RankOptions& options,
            std::unique_ptr<TcpReplicator> mirror = nullptr);
  /// Awaits the calls that were started; of a failed job they end at once.
  ~ShmWorld() override { end_->end_call_threads(); }

  [[nodiscard]] int rank() const override { return end_->rank(); }
  [[nodiscard]] int size() const override { return end_->segment().num_ranks(); }
  std::shared_ptr<Group> group(const std::vector<int>& ranks, const std::string& name) override;
  void abort(const Error& cause) override { end_->abort(cause); }
  [[nodiscard]] bool ranks_are_threads() const override { return end_->segment().is_of_threads(); }
  void note_step(int64_t step) override {
    end_->slot().step.store(step, std::memory_order_relaxed);
  }
  void note_resume_hint(std::string_view text) override { end_->segment().note_resume_hint(text); }

  /// Groups made from now on also move memory of this rank's device. All ranks have one, or none.
  void use_device(std::shared_ptr<Device> device) { device_ = std::move(device); }

 private:
  std::shared_ptr<RankEndpoint> end_;
  std::shared_ptr<Mailbox> mailbox_;
  std::shared_ptr<Device> device_;                  // nullptr: the processor alone
  std::map<std::vector<int>, int64_t> num_groups_;  // made so far of these ranks
};

}  // namespace cleave
