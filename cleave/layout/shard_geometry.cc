#include "cleave/layout/shard_geometry.h"

#include <algorithm>
#include <numeric>

namespace cleave::inline layout {
namespace {

/// Appends the boxes of `range` within dims >= `dim`; `box` holds the ranges of the dims before.
void add_boxes(const std::vector<int64_t>& shape, size_t dim, Range range, Box& box,
               std::vector<Box>& boxes) {
  if (range.size() <= 0) return;
  if (dim == shape.size()) {
    boxes.push_back(box);
    return;
  }
  const int64_t inner = std::accumulate(shape.begin() + static_cast<std::ptrdiff_t>(dim) + 1,
                                        shape.end(), int64_t{1}, std::multiplies<>());
  const auto within = [&](int64_t row) {  // the part of one row
    box.push_back({row, row + 1});
    add_boxes(shape, dim + 1,
              common({range.begin - row * inner, range.end - row * inner}, {0, inner}), box, boxes);
    box.pop_back();
  };
  int64_t row = range.begin / inner;
  if (range.begin % inner != 0) within(row++);
  const int64_t last = range.end / inner;
  if (row < last) {
    Box whole = box;
    whole.push_back({row, last});
    for (size_t d = dim + 1; d < shape.size(); ++d) whole.push_back({0, shape[d]});
    boxes.push_back(std::move(whole));
    row = last;
  }
  if (row * inner < range.end) within(row);
}

}  // namespace

std::vector<Box> flat_boxes(const std::vector<int64_t>& shape, Range range) {
  std::vector<Box> boxes;
  Box box;
  add_boxes(shape, 0, range, box, boxes);
  return boxes;
}

Range flat_shard(int64_t size, int rank, int num_ranks) {
  return {size * rank / num_ranks, size * (rank + 1) / num_ranks};
}

Range common(Range a, Range b) {
  const int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

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

}  // namespace cleave::inline layout
