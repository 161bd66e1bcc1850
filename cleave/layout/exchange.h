#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "cleave/mesh/axis.h"

namespace cleave::inline layout {

/// How many rows of this rank go to each rank of an axis, and how many come from each.
struct RowCounts {
  std::vector<int64_t> sent, received;
};

/// The rows [sum of received, D] that the ranks of the axis sent to this one, in rank order. The
/// first sent[0] of `rows` [sum of sent, D] go to rank 0, the next sent[1] to rank 1, and so on;
/// any count may be 0. Differentiable: backward sends gradients back the same way. Collective, and
/// collective again in backward. Throws Error(kDesync) if a rank receives another number of rows
/// than were sent to it.
Tensor exchange_rows(const Tensor& rows, const RowCounts& counts, const Axis& axis,
                     const std::string& site);

}  // namespace cleave::inline layout
