#pragma once
#include <cstdint>
#include <vector>

#include "cleave/base/range.h"

namespace cleave::inline layout {

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

/// A range of a sharded dim, and its place in a rank's local tensor, which holds the rank's ranges
/// one after the other.
struct ShardPiece {
  Range whole;        ///< indices of the whole dim
  int64_t local = 0;  ///< of the first of them in the local dim
};

/// The ranges that a rank holds (ascending, as in Split), in the order of its local memory.
std::vector<ShardPiece> pieces_of(const std::vector<Range>& held);
/// The parts of the ranges `wanted` of the whole dim (ascending) that the rank holds; none empty.
std::vector<ShardPiece> pieces_of(const std::vector<Range>& held, const std::vector<Range>& wanted);

}  // namespace cleave::inline layout
