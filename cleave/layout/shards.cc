#include "cleave/layout/shards.h"

#include <ATen/ATen.h>

#include "cleave/base/error.h"
#include "cleave/layout/shard_geometry.h"
#include "cleave/mesh/axis.h"

namespace cleave::inline layout {
namespace {

Tensor take(const Tensor& whole, int64_t dim, const std::vector<Range>& ranges) {
  if (ranges.size() == 1) return whole.narrow(dim, ranges[0].begin, ranges[0].size()).contiguous();
  std::vector<Tensor> parts;
  for (const Range& r : ranges) parts.push_back(whole.narrow(dim, r.begin, r.size()));
  return parts.empty() ? whole.narrow(dim, 0, 0).contiguous() : at::cat(parts, dim);
}

/// Permutes blocks joined in rank order to the order of the whole dim.
Tensor in_whole_order(const Tensor& joined, int64_t dim, const Split& split) {
  if (split.in_order()) return joined;
  const Tensor places =
      at::tensor(split.places(), at::kLong).to(joined.device(), /*non_blocking=*/true);
  return joined.index_select(dim, places);
}

}  // namespace

Tensor Shards::slice(const Tensor& whole) const {
  return take(whole, placement.dim(), placement.split()->ranges(axis.rank()));
}

Tensor Shards::owned_slice(const Tensor& whole) const {
  const Split& split = *placement.split();
  if (!split.overlaps()) return slice(whole);
  Tensor owned = at::zeros_like(whole);
  for (const Range& r : split.owned(axis.rank())) {
    owned.narrow(placement.dim(), r.begin, r.size())
        .copy_(whole.narrow(placement.dim(), r.begin, r.size()));
  }
  return slice(owned);
}

Tensor Shards::gather(const Tensor& local) const {
  const Split& split = *placement.split();
  return in_whole_order(axis.all_gather(local, placement.dim(), split.widths(), site),
                        placement.dim(), split);
}

Tensor Shards::gather_parts(const Tensor& local) const {
  return placement.split()->overlaps() ? axis.all_reduce(zero_padded(local), site) : gather(local);
}

Tensor Shards::sum_and_slice(const Tensor& whole) const {
  const Split& split = *placement.split();
  if (!split.in_order()) return slice(axis.all_reduce(whole, site));
  return axis.reduce_scatter(whole, placement.dim(), split.widths(), site);
}

Tensor Shards::zero_padded(const Tensor& local) const {
  const Split& split = *placement.split();
  Tensor whole = at::zeros(with_dim(local, placement.dim(), split.whole()), local.options());
  for (const auto& [range, begin] : pieces_of(split.ranges(axis.rank()))) {
    whole.narrow(placement.dim(), range.begin, range.size())
        .copy_(local.narrow(placement.dim(), begin, range.size()));
  }
  return whole;
}

Tensor exchange(const Tensor& local, const Shards& from, const Shards& to) {
  if (from.placement.dim() == to.placement.dim()) return to.slice(from.gather(local));
  const int64_t from_dim = from.placement.dim();
  const int64_t to_dim = to.placement.dim();
  const Split& from_split = *from.placement.split();
  const Split& to_split = *to.placement.split();
  CLEAVE_CHECK(!from_split.overlaps() && !to_split.overlaps(), Code::kShape,
               "an exchange between overlapping shards is not defined; called by ", from.site);
  std::vector<Tensor> parts;
  std::vector<std::vector<int64_t>> shapes;
  for (int r = 0; r < from.axis.size(); ++r) {
    parts.push_back(take(local, to_dim, to_split.ranges(r)));
    auto shape = with_dim(local, to_dim, to_split.width(from.axis.rank()));
    shape[static_cast<size_t>(from_dim)] = from_split.width(r);
    shapes.push_back(std::move(shape));
  }
  const auto received = from.axis.all_to_all(parts, shapes, from.site);
  return in_whole_order(at::cat(received, from_dim), from_dim, from_split);
}

Tensor exchange_gradient(const Tensor& local, const Shards& from, const Shards& to) {
  if (from.placement.dim() != to.placement.dim()) return exchange(local, to, from);
  return from.owned_slice(to.gather_parts(local));
}

}  // namespace cleave::inline layout
