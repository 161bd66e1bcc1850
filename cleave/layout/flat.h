#pragma once
#include <cstdint>
#include <vector>

#include "cleave/base/range.h"

namespace cleave {

/// A box of a tensor: a range of every dim.
using Box = std::vector<Range>;

/// The elements `range` of a row-major tensor of `shape`, as boxes that follow each other: joined
/// in order, their elements are the range in order. At most 2 * dims - 1 boxes, none of them empty.
std::vector<Box> flat_boxes(const std::vector<int64_t>& shape, Range range);

/// Near-equal cut of `size` elements over ranks, without padding: rank r has [size r / n,
/// size (r+1) / n).
Range flat_cut(int64_t size, int rank, int num_ranks);

/// What two ranges have in common; empty (begin = end) when nothing.
Range common(Range a, Range b);

}  // namespace cleave
