#include "cleave/layout/exchange.h"

#include <ATen/ATen.h>

#include "cleave/torch_internals/node.h"

namespace cleave::inline layout {
namespace {

Tensor moved(const Tensor& rows, const std::vector<int64_t>& sent,
             const std::vector<int64_t>& received, const Axis& axis, const std::string& site) {
  std::vector<std::vector<int64_t>> shapes;
  for (const int64_t count : received) shapes.push_back({count, rows.size(1)});
  return at::cat(axis.all_to_all(rows.split_with_sizes(sent, 0), shapes, site));
}

}  // namespace

Tensor exchange_rows(const Tensor& rows, const RowCounts& counts, const Axis& axis,
                     const std::string& site) {
  if (axis.size() == 1) return rows;
  return differentiable(
      "exchange_rows", rows,
      [&](const Tensor& t) { return moved(t, counts.sent, counts.received, axis, site); },
      [counts, axis, site](const Tensor& gradient) {
        return moved(gradient, counts.received, counts.sent, axis, site);
      });
}

}  // namespace cleave::inline layout
