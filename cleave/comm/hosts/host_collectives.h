#pragma once
#include <span>

#include "cleave/comm/api/operation.h"
#include "cleave/comm/hosts/host_links.h"
#include "cleave/comm/shm/blocks.h"
#include "cleave/comm/shm/collectives.h"

namespace cleave::inline comm {

// Collectives of a group over several hosts. Inside a host data passes through the memory that its
// members share; between hosts each byte passes once for each pair of hosts that needs it. All
// members have agreed on the operation before.
//
// A sum adds in rank order, as everywhere: the members of a host have consecutive ranks, so host 0
// adds its own values, one after the other, and sends the accumulators to host 1, which adds its
// values to them, and so on. The result has the same bits as on one host. HostLinks::fast_sums
// gives this up for all-reduces.

/// The same as the functions of Group with these names. The caller first checks
/// layout.pays_to_sum() or pays_to_gather(), so that all members call these functions or none does.
void host_all_reduce(HostLinks& links, const Operation& operation, const Buffers& buffers);
void host_reduce_scatter(HostLinks& links, const Operation& operation, const Blocks& blocks,
                         const Buffers& buffers);
void host_all_gather(HostLinks& links, const Blocks& blocks, const Buffers& buffers);
void host_broadcast(HostLinks& links, int root, std::span<std::byte> data);

/// The bytes of the host whose members have the most bytes of these blocks.
int64_t largest_host_bytes(const HostLayout& layout, const Blocks& blocks);

}  // namespace cleave::inline comm
