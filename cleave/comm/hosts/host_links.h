#pragma once
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cleave/comm/hosts/host_exchange.h"
#include "cleave/comm/hosts/host_layout.h"
#include "cleave/comm/hosts/host_network.h"
#include "cleave/comm/shm/collective_sync.h"

namespace cleave::inline comm {

/// Buffers of a group's members on one host, in the memory that they share.
class HostBuffers {
 public:
  /// For a member that is alone on its host.
  HostBuffers();
  /// `group` is a group of this host's members in their segment; `local` is this one's index in it.
  HostBuffers(std::shared_ptr<RankEndpoint> host, uint32_t group, int local);

  /// Bytes of a buffer, a multiple of 64.
  [[nodiscard]] int64_t bytes() const;
  /// Where to write what the next publish() shows to the others.
  [[nodiscard]] std::byte* own();
  /// Waits until all members of the host have published their buffers, which stay valid until the
  /// next call.
  void publish();
  /// What a member of this host has published.
  [[nodiscard]] const std::byte* of(int local) const;

 private:
  std::optional<CollectiveSync> sync_;
  std::vector<std::byte> alone_;
};

/// How a member of a group over hosts reaches the others.
struct HostLinks {
  HostLayout layout;
  std::unique_ptr<HostBuffers> buffers;
  std::unique_ptr<HostExchange> exchange;  ///< nullptr for a member without a lane
  bool fast_sums = false;  ///< the exchange adds the numbers of fp32 and fp64 all-reduces
};

/// Connects the members of a group between hosts. Collective: all members have agreed on the
/// operation of `sync`, the group's, and call this. `host` is this rank's access to its host's
/// segment, nullptr if it is alone there. `network`: nullptr for the job's TCP connections. Returns
/// nullptr on all members if HostLayout::make() gives none, or if each member is on its own host
/// and the connections are TCP: then exchanges along lanes save nothing.
std::unique_ptr<HostLinks> connect_hosts(CollectiveSync& sync,
                                         const std::shared_ptr<RankEndpoint>& job,
                                         const std::shared_ptr<RankEndpoint>& host,
                                         HostNetwork* network);

}  // namespace cleave::inline comm
