#pragma once
#include <cstdint>
#include <span>
#include <string>

#include "cleave/planner/options.h"

namespace cleave::inline planner {

/// How a run uses its ranks: its layout, and how each rank divides the batch.
struct RankUse {
  LayoutOptions layout;          ///< tp is at least 1
  int64_t batch_size = 8;        ///< global, in sequences
  int64_t micro_batch_size = 0;  ///< per data-parallel rank; 0 = the default of training
};

/// The same run on other ranks, after hosts were lost or came back. `ranks_of_hosts` has the number
/// of ranks of each host, in rank order.
///
/// dp changes first. Where no dp fits, pp becomes one of its divisors, then tp; tp divides the
/// number of ranks of each host. The batch stays the same. The micro-batch never grows, so that a
/// step needs no more memory for activations: ranks run more micro-batches instead. ep shrinks to a
/// divisor of dp.
///
/// Returns `before` if it has as many ranks. Throws Error(kShape) if no layout fits.
RankUse on_other_ranks(const RankUse& before, std::span<const int> ranks_of_hosts);

/// One line about the change: "4 ranks instead of 6: dp=3 -> 2, tp=2, pp=1; ...".
std::string describe_change(const RankUse& before, const RankUse& after);

}  // namespace cleave::inline planner
