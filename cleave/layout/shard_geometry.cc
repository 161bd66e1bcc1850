#include "cleave/layout/shard_geometry.h"

#include "cleave/layout/flat.h"

namespace cleave {

std::vector<ShardPiece> pieces_of(const std::vector<Range>& held) {
  std::vector<ShardPiece> pieces;
  int64_t local = 0;
  for (const Range& range : held) {
    pieces.push_back({range, local});
    local += range.size();
  }
  return pieces;
}

std::vector<ShardPiece> pieces_of(const std::vector<Range>& held,
                                  const std::vector<Range>& wanted) {
  std::vector<ShardPiece> pieces;
  for (const ShardPiece& piece : pieces_of(held)) {
    for (const Range& range : wanted) {
      const Range part = common(piece.whole, range);
      if (part.size() > 0) pieces.push_back({part, piece.local + part.begin - piece.whole.begin});
    }
  }
  return pieces;
}

}  // namespace cleave
