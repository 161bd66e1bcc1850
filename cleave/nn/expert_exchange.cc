#include "cleave/nn/expert_exchange.h"

#include <numeric>

#include <ATen/ATen.h>

namespace cleave::inline nn {
namespace {

/// Rows of every expert on each rank. [ranks, experts]
Tensor counts_of_all(const std::vector<int64_t>& counts, const Axis& ep, const std::string& site,
                     bool is_dry) {
  const Tensor mine = at::tensor(counts, at::kLong).unsqueeze(0);
  if (is_dry) return mine.expand({ep.size(), mine.size(1)});
  const std::vector<int64_t> ones(static_cast<size_t>(ep.size()), 1);
  return ep.all_gather(mine, 0, ones, site);
}

std::vector<int64_t> numbers_of(const Tensor& t) {
  const Tensor flat = t.contiguous().flatten();
  const auto* data = flat.const_data_ptr<int64_t>();
  return {data, data + flat.numel()};
}

/// Parts of `rows`, which are `columns` for each of its groups, as the same parts by column.
Tensor transposed(const Tensor& rows, const std::vector<int64_t>& parts, size_t columns) {
  const std::vector<Tensor> all = rows.split_with_sizes(parts, 0);
  std::vector<Tensor> out;
  for (size_t c = 0; c < columns; ++c) {
    for (size_t i = c; i < all.size(); i += columns) out.push_back(all[i]);
  }
  return at::cat(out);
}

}  // namespace

std::vector<int64_t> rows_by_rank(const std::vector<int64_t>& counts, const Split& experts) {
  std::vector<int64_t> rows;
  for (int r = 0; r < experts.num_ranks(); ++r) {
    const Range range = experts.ranges(r).front();
    rows.push_back(
        std::accumulate(counts.begin() + range.begin, counts.begin() + range.end, int64_t{0}));
  }
  return rows;
}

ExpertExchange::ExpertExchange(const std::vector<int64_t>& counts, const SplitPtr& experts,
                               const Axis& ep, const std::string& site, bool is_dry)
    : ep_(ep), site_(site) {
  const Range own = experts->ranges(ep.rank()).front();
  const Tensor here = counts_of_all(counts, ep, site, is_dry).narrow(1, own.begin, own.size());
  by_rank_ = numbers_of(here);
  by_expert_ = numbers_of(here.t());
  counts_ = numbers_of(here.sum(0));
  rows_.received = numbers_of(here.sum(1));
  rows_.sent = rows_by_rank(counts, *experts);
}

Tensor ExpertExchange::to_experts(const Tensor& rows) const {
  return transposed(exchange_rows(rows, rows_, ep_, site_), by_rank_, counts_.size());
}

Tensor ExpertExchange::to_tokens(const Tensor& rows) const {
  const Tensor back = transposed(rows, by_expert_, rows_.sent.size());
  return exchange_rows(back, {.sent = rows_.received, .received = rows_.sent}, ep_, site_);
}

}  // namespace cleave::inline nn
