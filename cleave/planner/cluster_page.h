#pragma once
#include <string>

#include "cleave/planner/cluster_search.h"

namespace cleave::inline planner {

/// What the page of a plan shows above the layouts.
struct PlanPage {
  std::string model;  ///< as given to --model
  double tokens = 0;  ///< of a training run; 0: not given
};

/// A self-contained page: sliders for the sizes of a layout and the memory of a device, and the
/// fastest layouts that they leave, with memory and time by kind. It holds the cost of every layout
/// that the search considers, whether it fits or not, but at most the 40000 fastest.
std::string plan_page(const Cluster& c, const TransformerSize& m, const ClusterTask& task,
                      const PlanPage& page);

}  // namespace cleave::inline planner
