#pragma once
#include <array>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "cleave/planner/cluster_cost.h"

namespace cleave::inline planner {

/// What a search may choose from.
struct ClusterTask {
  int64_t devices = 1;
  ClusterRun run;           ///< batch, length, dtype and bytes per parameter; its layout is ignored
  int64_t micro_batch = 0;  ///< 0: any
  std::function<bool(const ClusterRun&)> takes{};  ///< whether a layout may be chosen; empty: any
  double memory_bytes = 0;                         ///< limit of a device
};

/// A layout that was considered.
struct ClusterPlan {
  ClusterRun run;
  ClusterCost cost;
};

/// What a search found.
struct ClusterPlans {
  std::vector<ClusterPlan> best;  ///< that fit, the fastest first
  int64_t considered = 0;         ///< layouts that are possible, whether they fit or not
  int64_t too_large = 0;
  std::array<int64_t, 6> too_large_by{};  ///< `too_large` by the kind that takes the most memory,
                                          ///< in the order of memory_kinds()
  std::vector<ClusterPlan> smallest;      ///< of those too large, the one that needs the least
  std::string refused;  ///< why a layout that the task takes is not possible; empty: none was met
};

/// Tries every tp of up to two hosts, pp, dp, ep that divides dp and the experts, micro-batch,
/// number of virtual stages, recompute, sharding, with and without sequence parallelism. Keeps the
/// `count` fastest. Takes milliseconds, also for 100000 devices.
ClusterPlans search_cluster(const Cluster& c, const TransformerSize& m, const ClusterTask& task,
                            size_t count);

/// Names and bytes of the kinds of memory.
std::array<std::pair<const char*, double>, 6> memory_kinds(const ClusterMemory& memory);

/// Names and seconds of the kinds of time.
std::array<std::pair<const char*, double>, 6> time_kinds(const ClusterTime& time);

/// The flags of `cleave train` for a layout.
std::string flags_of(const ClusterRun& run);

/// Why `slower` takes longer than `best`: "12.3 % slower: bubble +1.2 s".
std::string why_slower(const ClusterPlan& best, const ClusterPlan& slower);

}  // namespace cleave::inline planner
