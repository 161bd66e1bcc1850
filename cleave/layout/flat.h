#pragma once
#include <cstdint>
#include <vector>

#include "cleave/base/range.h"

namespace cleave {

/// A box of a tensor: a range for every dim.
using Box = std::vector<Range>;

/// The flat range `range` of a row-major tensor of `shape` as boxes. The boxes' elements,
/// concatenated in order, are the elements of the range in order. At most 2 * dims - 1 boxes, none
/// empty.
std::vector<Box> flat_boxes(const std::vector<int64_t>& shape, Range range);

/// Near-equal shard of `size` elements without padding: rank r has
/// [size r / num_ranks, size (r+1) / num_ranks).
Range flat_shard(int64_t size, int rank, int num_ranks);

/// Intersection of two ranges; begin = end when it is empty.
Range common(Range a, Range b);

}  // namespace cleave
