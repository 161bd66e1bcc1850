#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cleave/comm/api/device.h"
#include "cleave/comm/api/world.h"
#include "cleave/comm/hosts/host_network.h"
#include "cleave/comm/shm/device_monitor.h"
#include "cleave/comm/shm/mailbox.h"
#include "cleave/comm/shm/rank_endpoint.h"

namespace cleave::inline comm {

/// The world of ranks on one host, which share a segment, or on several: then each rank has a
/// replica of it, which a TcpReplicator keeps consistent, and the ranks of each host share another
/// segment. A group whose ranks are all on one host uses only the host's segment and no sockets. A
/// group that spans hosts uses the replicas, and for large collectives both.
class ShmWorld : public World {
 public:
  ShmWorld(std::shared_ptr<SharedSegment> segment, int rank, const RankOptions& options);
  /// For ranks on several hosts. `segment` is this rank's replica. `host`: the segment of this
  /// host's ranks, which have all connected; nullptr if this rank is alone there. `network`: for
  /// large collectives between hosts; nullptr if the replicator has the only connections.
  ShmWorld(std::shared_ptr<SharedSegment> segment, int rank, const RankOptions& options,
           std::unique_ptr<TcpReplicator> replicator, std::shared_ptr<SharedSegment> host,
           std::shared_ptr<HostNetwork> network = nullptr);
  /// Waits for the started calls; if the job has failed, they end immediately.
  ~ShmWorld() override;

  [[nodiscard]] int rank() const override { return job_.endpoint->rank(); }
  [[nodiscard]] int size() const override { return job_.endpoint->segment().num_ranks(); }
  std::shared_ptr<Group> group(const std::vector<int>& ranks, const std::string& name) override;
  void abort(const Error& cause) override;
  [[nodiscard]] bool ranks_are_threads() const override {
    return job_.endpoint->segment().is_of_threads();
  }
  void note_step(int64_t step) override;
  void note_resume_hint(std::string_view text) override {
    job_.endpoint->segment().note_resume_hint(text);
  }

  /// Groups made from now on also accept memory of this rank's device. Either all ranks have a
  /// device or none.
  void use_device(std::shared_ptr<Device> device) override;

 private:
  /// This rank's access to a segment.
  struct Access {
    std::shared_ptr<RankEndpoint> endpoint;
    std::shared_ptr<Mailbox> mailbox;
  };
  [[nodiscard]] static Access access(std::shared_ptr<SharedSegment> segment, int rank,
                                     const RankOptions& options,
                                     std::unique_ptr<TcpReplicator> replicator);
  /// The segment for a group of these ranks.
  [[nodiscard]] const Access& access_of(const std::vector<int>& ranks) const;

  Access job_;
  std::optional<Access> host_;  // after job_: leaving the host's segment comes first
  std::shared_ptr<HostNetwork> network_;
  std::shared_ptr<Device> device_;                  // nullptr: CPU memory only
  std::shared_ptr<DeviceMonitor> monitor_;          // with a device
  std::map<std::vector<int>, int64_t> num_groups_;  // made so far, by their ranks
};

}  // namespace cleave::inline comm
