#pragma once
#include "cleave/planner/cluster.h"

namespace cleave::inline planner {

/// `size` devices, `stride` apart in the numbering of all devices; hosts hold consecutive numbers.
struct LinkGroup {
  int size = 1;
  int stride = 1;
  int64_t world = 0;  ///< all devices of the run; 0: the group's own
};

/// Seconds to sum `bytes` on every device of a group, while the groups beside it do the same: a
/// ring sends 2 (n - 1) / n of them over the slowest link. All members of a host share its links to
/// other hosts. Half of it is the time of a reduce-scatter or an all-gather.
double all_reduce_time(const Cluster& c, double bytes, const LinkGroup& group);

/// Seconds of an all-to-all in which every device of a group sends an equal part of `bytes` to each
/// device, while the groups beside it do the same.
double all_to_all_time(const Cluster& c, double bytes, const LinkGroup& group);

/// Seconds until each device i of a run of `world` devices has sent `bytes` to device i + distance.
double send_time(const Cluster& c, double bytes, int64_t distance, int64_t world);

}  // namespace cleave::inline planner
