#pragma once
#include <string>
#include <vector>

#include "cleave/layout/exchange.h"
#include "cleave/layout/split.h"

namespace cleave::inline nn {

/// How many of the rows go to each rank, from the number of rows for each expert.
std::vector<int64_t> rows_by_rank(const std::vector<int64_t>& counts, const Split& experts);

/// One exchange of rows between the ranks of an axis ep, each of which has some of the experts: to
/// the ranks of their experts, and back. No expert has a limit of rows.
class ExpertExchange {
 public:
  /// `counts`: this rank's rows of every expert. `experts`: which ones each rank has. Without
  /// `is_dry`, collective; with it, all ranks have the counts of this one (a forecast).
  ExpertExchange(const std::vector<int64_t>& counts, const SplitPtr& experts, const Axis& ep,
                 const std::string& site, bool is_dry);

  /// The rows of all ranks for each of this rank's experts.
  [[nodiscard]] const std::vector<int64_t>& counts() const { return counts_; }
  /// From rows sorted by expert to those of this rank's experts, sorted by expert. Differentiable.
  /// Collective, in backward too.
  [[nodiscard]] Tensor to_experts(const Tensor& rows) const;
  /// The reverse of to_experts(): results return to their rows' ranks, in the order of the rows.
  [[nodiscard]] Tensor to_tokens(const Tensor& rows) const;

 private:
  Axis ep_;
  std::string site_;
  RowCounts rows_;
  /// Rows that each rank sends to each of this rank's experts: by rank and expert, and by expert
  /// and rank.
  std::vector<int64_t> by_rank_, by_expert_;
  std::vector<int64_t> counts_;
};

}  // namespace cleave::inline nn
