#include "cleave/format/block.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "cleave/base/checked.h"
#include "cleave/base/error.h"

namespace cleave::inline format {
namespace {

bool is_whole(const std::vector<Range>& ranges, int64_t size) {
  return ranges.size() == 1 && ranges[0] == Range{0, size};
}

/// Checks the ranges against the dim's size, removes empty ones and joins adjacent ones.
std::vector<Range> tidy(const Slice& slice, int64_t size) {
  std::vector<Range> tidied;
  int64_t last = 0;
  for (const Range& range : slice.ranges) {
    CLEAVE_CHECK(range.begin >= last && range.end >= range.begin && range.end <= size, Code::kUsage,
                 "range [", range.begin, ", ", range.end, ") of dim ", slice.dim,
                 " is invalid; expected ascending ranges in [0, ", size, ")");
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

// Smaller pieces are read through a buffer instead of one system call each.
constexpr uint64_t kSmallPieceBytes = 1024;
constexpr uint64_t kWindowBytes = uint64_t{64} << 10;

/// Reads small pieces through a buffered window that moves forward through the file.
class Window {
 public:
  Window(const File& file, uint64_t limit) : file_(file), limit_(limit) {}

  void copy(uint64_t offset, std::span<std::byte> out) {
    if (offset < begin_ || offset + out.size() > begin_ + buffer_.size()) {
      begin_ = offset;
      buffer_.resize(std::min(kWindowBytes, limit_ - offset));
      file_.read_at(begin_, buffer_);
    }
    std::memcpy(out.data(), buffer_.data() + (offset - begin_), out.size());
  }

 private:
  const File& file_;
  uint64_t limit_;
  uint64_t begin_ = 0;
  std::vector<std::byte> buffer_;
};

void read_row_major(const File& file, uint64_t begin, BlockWalk& walk, std::span<std::byte> out) {
  Window window(file, begin + walk.end());
  while (const auto piece = walk.next()) {
    const auto to = out.first(piece->bytes);
    if (piece->bytes < kSmallPieceBytes) {
      window.copy(begin + piece->offset, to);
    } else {
      file.read_at(begin + piece->offset, to);
    }
    out = out.subspan(piece->bytes);
  }
}

/// One dim of a strided block, and the current position in it.
struct StridedDim {
  std::vector<Range> ranges;  ///< not empty
  uint64_t from = 0, to = 0;  ///< strides in bytes: in the file, in the block
  size_t range = 0;
  int64_t index = 0;
  uint64_t num_taken = 0;

  void rewind() {
    range = 0;
    index = ranges.front().begin;
    num_taken = 0;
  }
  bool advance() {
    ++num_taken;
    if (++index < ranges[range].end) return true;
    if (++range == ranges.size()) return false;
    index = ranges[range].begin;
    return true;
  }
};

/// The dims of the block, largest stride first, so that iteration reads forward through the file.
std::vector<StridedDim> strided_dims(const StoredElements& elements,
                                     std::span<const Slice> slices) {
  std::vector<StridedDim> dims(elements.shape.size());
  auto stride = static_cast<uint64_t>(elements.item_bytes);
  for (size_t i = dims.size(); i-- > 0;) {
    StridedDim& dim = dims[i];
    dim.ranges = {{0, elements.shape[i]}};
    for (const Slice& slice : slices) {
      if (static_cast<size_t>(slice.dim) == i) dim.ranges = slice.ranges;
    }
    std::erase_if(dim.ranges, [](const Range& range) { return range.size() == 0; });
    // The stride of a dim of size 1 may be any number.
    if (elements.shape[i] > 1) {
      dim.from = static_cast<uint64_t>(elements.strides[i] * elements.item_bytes);
    }
    dim.to = stride;
    for (const Range& range : dim.ranges) dim.num_taken += static_cast<uint64_t>(range.size());
    stride *= dim.num_taken;
    dim.rewind();
  }
  std::stable_sort(dims.begin(), dims.end(),
                   [](const StridedDim& a, const StridedDim& b) { return a.from > b.from; });
  return dims;
}

void read_strided(const File& file, const StoredElements& elements, std::span<const Slice> slices,
                  std::span<std::byte> out) {
  std::vector<StridedDim> dims = strided_dims(elements, slices);
  const auto item = static_cast<size_t>(elements.item_bytes);
  uint64_t limit = elements.begin + item;
  for (const StridedDim& dim : dims) {
    limit += static_cast<uint64_t>(dim.ranges.back().end - 1) * dim.from;
  }
  Window window(file, limit);
  while (true) {
    uint64_t from = elements.begin, to = 0;
    for (size_t i = 0; i + 1 < dims.size(); ++i) {
      from += static_cast<uint64_t>(dims[i].index) * dims[i].from;
      to += dims[i].num_taken * dims[i].to;
    }
    StridedDim& inner = dims.back();
    inner.rewind();
    do {
      window.copy(from + static_cast<uint64_t>(inner.index) * inner.from,
                  out.subspan(to + inner.num_taken * inner.to, item));
    } while (inner.advance());
    size_t outer = dims.size() - 1;
    do {
      if (outer == 0) return;
      dims[outer--].rewind();
    } while (!dims[outer].advance());
  }
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
  // An empty tensor has no bytes, and the product of its other sizes may overflow.
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
  // Inner dims that are whole are contiguous with the next outer dim.
  while (!ranges_.empty() && is_whole(ranges_.back(), shape[ranges_.size() - 1])) {
    ranges_.pop_back();
  }
  if (ranges_.empty()) {  // the whole tensor: one dim with a single index
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

void read_elements(const File& file, const StoredElements& elements, std::span<const Slice> slices,
                   std::span<std::byte> out, const std::string& what) {
  BlockWalk walk(elements.shape, elements.item_bytes, slices);
  CLEAVE_CHECK(walk.bytes() == out.size(), Code::kUsage, what, ": the block has ", walk.bytes(),
               " bytes; the memory for it has ", out.size());
  if (out.empty()) return;
  if (elements.strides.empty() || elements.shape.empty()) {
    read_row_major(file, elements.begin, walk, out);
  } else {
    read_strided(file, elements, slices, out);
  }
}

}  // namespace cleave::inline format
