#include "cleave/format/block.h"

#include <algorithm>
#include <utility>

#include "cleave/base/checked.h"

namespace cleave {
namespace {

bool is_whole(const std::vector<Range>& ranges, int64_t size) {
  return ranges.size() == 1 && ranges[0] == Range{0, size};
}

/// Ranges without empty ones, touching ones joined, checked against the dim's size.
std::vector<Range> tidy(const Slice& slice, int64_t size) {
  std::vector<Range> tidied;
  int64_t last = 0;
  for (const Range& range : slice.ranges) {
    CLEAVE_CHECK(range.begin >= last && range.end >= range.begin && range.end <= size, Code::kUsage,
                 "range [", range.begin, ", ", range.end, ") of dim ", slice.dim,
                 " is not possible; expected ascending ranges in [0, ", size, ")");
    last = range.end;
    if (range.size() == 0) continue;
    if (!tidied.empty() && tidied.back().end == range.begin) {
      tidied.back().end = range.end;
    } else {
      tidied.push_back(range);
    }
  }
  return tidied;
}

}  // namespace

uint64_t num_elements(std::span<const int64_t> shape, const std::string& what) {
  uint64_t count = 1;
  for (const int64_t size : shape) {
    CLEAVE_CHECK(size >= 0, Code::kFormat, what, ": size ", size, " of a dim is negative");
    count = checked_mul(count, static_cast<uint64_t>(size), what);
  }
  return count;
}

BlockWalk::BlockWalk(std::span<const int64_t> shape, int64_t item_bytes,
                     std::span<const Slice> slices) {
  ranges_.resize(shape.size());
  for (size_t dim = 0; dim < shape.size(); ++dim) ranges_[dim] = {{0, shape[dim]}};
  std::vector<bool> seen(shape.size());
  for (const Slice& slice : slices) {
    const auto dim = static_cast<size_t>(slice.dim);
    CLEAVE_CHECK(slice.dim >= 0 && dim < shape.size() && !seen[dim], Code::kUsage, "slice of dim ",
                 slice.dim, " of a tensor with ", shape.size(),
                 " dims; expected each dim at most once");
    seen[dim] = true;
    ranges_[dim] = tidy(slice, shape[dim]);
  }
  // A dim without a cut joins the one outside of it: its pieces touch.
  // No bytes are in a tensor that is empty, however long its other dims are.
  const bool is_empty = std::find(shape.begin(), shape.end(), 0) != shape.end();
  strides_.resize(shape.size());
  auto stride = static_cast<uint64_t>(item_bytes);
  bytes_ = stride;
  for (size_t dim = shape.size(); dim-- > 0;) {
    strides_[dim] = stride;
    if (!is_empty) stride = checked_mul(stride, static_cast<uint64_t>(shape[dim]), "tensor");
    uint64_t kept = 0;
    for (const Range& range : ranges_[dim]) kept += static_cast<uint64_t>(range.size());
    bytes_ *= kept;
  }
  while (!ranges_.empty() && is_whole(ranges_.back(), shape[ranges_.size() - 1])) {
    ranges_.pop_back();
  }
  if (ranges_.empty()) {  // one piece: a single dim whose only index is the tensor
    ranges_ = {{{0, 1}}};
    strides_ = {bytes_};
  }
  strides_.resize(ranges_.size());
  done_ = bytes_ == 0;
  if (done_) return;
  range_.assign(ranges_.size(), 0);
  end_ = strides_.back();
  for (size_t dim = 0; dim < ranges_.size(); ++dim) {
    index_.push_back(ranges_[dim].front().begin);
    end_ += static_cast<uint64_t>(ranges_[dim].back().end - 1) * strides_[dim];
  }
}

std::optional<Piece> BlockWalk::step() {
  if (done_) return std::nullopt;
  const size_t last = ranges_.size() - 1;
  Piece piece;
  for (size_t dim = 0; dim < last; ++dim) {
    piece.offset += static_cast<uint64_t>(index_[dim]) * strides_[dim];
  }
  const Range& inner = ranges_[last][range_[last]];
  piece.offset += static_cast<uint64_t>(inner.begin) * strides_[last];
  piece.bytes = static_cast<uint64_t>(inner.size()) * strides_[last];
  for (size_t dim = last + 1; dim-- > 0;) {
    const auto& ranges = ranges_[dim];
    if (dim != last && ++index_[dim] < ranges[range_[dim]].end) return piece;
    if (++range_[dim] < ranges.size()) {
      index_[dim] = ranges[range_[dim]].begin;
      return piece;
    }
    range_[dim] = 0;
    index_[dim] = ranges.front().begin;
  }
  done_ = true;
  return piece;
}

std::optional<Piece> BlockWalk::next() {
  std::optional<Piece> piece = pending_ ? std::exchange(pending_, std::nullopt) : step();
  while (piece) {
    pending_ = step();
    if (!pending_ || pending_->offset != piece->offset + piece->bytes) break;
    piece->bytes += pending_->bytes;
  }
  return piece;
}

}  // namespace cleave
