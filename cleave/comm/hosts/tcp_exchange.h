#pragma once
#include <cstdint>
#include <memory>

#include "cleave/comm/hosts/host_exchange.h"
#include "cleave/comm/shm/collective_sync.h"

namespace cleave::inline comm {

/// The exchange over the TCP connections of a job: a group of the lane's members in the replicas.
class TcpExchange : public HostExchange {
 public:
  /// `group` is the lane's group in this rank's replica; its members are in the order of the hosts.
  TcpExchange(std::shared_ptr<RankEndpoint> job, uint32_t group, int host);

  [[nodiscard]] std::byte* buffer() override { return sync_.payload(); }
  void exchange(std::span<const ByteRange> to, std::span<const ByteRange> from) override;
  [[nodiscard]] const std::byte* received(int host) const override {
    return sync_.payload_of(host);
  }

 private:
  CollectiveSync sync_;
};

}  // namespace cleave::inline comm
