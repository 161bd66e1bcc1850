#pragma once
#include <vector>

#include "cleave/base/range.h"

namespace cleave {

/// A part of a sharded dim and where a rank's local tensor, which holds its ranges one after the
/// other, has it.
struct ShardPiece {
  Range whole;        ///< indices of the whole dim
  int64_t local = 0;  ///< of the first of them in the local dim
};

/// The ranges that a rank holds (ascending, as in Split), in the order of its local memory.
std::vector<ShardPiece> pieces_of(const std::vector<Range>& held);
/// The parts of the ranges `wanted` of the whole dim (ascending) that the rank holds; none empty.
std::vector<ShardPiece> pieces_of(const std::vector<Range>& held, const std::vector<Range>& wanted);

}  // namespace cleave
