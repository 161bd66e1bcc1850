#pragma once
#include <string>
#include <vector>

#include "cleave/planner/cluster_cost.h"

namespace cleave::inline planner {

/// A row of a table of published runs: the run as far as the row gives it, and what was measured.
struct PublishedRun {
  std::string id, source, model, cluster;
  TransformerSize size;
  ClusterRun run;
  std::string unsupported;           ///< why the row has no prediction; empty if it has one
  std::vector<std::string> assumed;  ///< what the row does not give
  double step_s = 0;                 ///< 0: not published
  double memory_bytes = 0;           ///< 0: not published
  bool out_of_memory = false;
};

/// Reads a table with the columns that docs/clusters.md lists. Throws Error(kFormat) naming
/// FILE:LINE and column, Error(kIo).
std::vector<PublishedRun> read_published_runs(const std::string& path);

}  // namespace cleave::inline planner
