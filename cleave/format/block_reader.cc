#include "cleave/format/block_reader.h"

#include <algorithm>
#include <cstring>

#include "cleave/base/error.h"
#include "cleave/format/block.h"

namespace cleave {
namespace {

// Pieces below this size are not worth a system call each: their surroundings are read at once.
constexpr uint64_t kSmallPiece = 1024;
constexpr uint64_t kWindow = uint64_t{64} << 10;

/// Reads small pieces through a window of the file that moves forward.
class Window {
 public:
  Window(const File& file, uint64_t limit) : file_(file), limit_(limit) {}

  void copy(uint64_t offset, std::span<std::byte> out) {
    if (offset < begin_ || offset + out.size() > begin_ + buffer_.size()) {
      begin_ = offset;
      buffer_.resize(std::min(kWindow, limit_ - offset));
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
    if (piece->bytes < kSmallPiece) {
      window.copy(begin + piece->offset, to);
    } else {
      file.read_at(begin + piece->offset, to);
    }
    out = out.subspan(piece->bytes);
  }
}

/// One dim of a strided block, and where a walk over it is.
struct StridedDim {
  std::vector<Range> ranges;  ///< none is empty
  uint64_t from = 0, to = 0;  ///< bytes from one index to the next: in the file, in the block
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

/// The wanted dims, widest stride first, so that a walk over them goes forward through the file.
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
    // The stride of a single index may be any number.
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

void read_elements(const File& file, const StoredElements& elements, std::span<const Slice> slices,
                   std::span<std::byte> out, const std::string& what) {
  BlockWalk walk(elements.shape, elements.item_bytes, slices);
  CLEAVE_CHECK(walk.bytes() == out.size(), Code::kUsage, what, ": the block has ", walk.bytes(),
               " bytes; the memory for it ", out.size());
  if (out.empty()) return;
  if (elements.strides.empty() || elements.shape.empty()) {
    read_row_major(file, elements.begin, walk, out);
  } else {
    read_strided(file, elements, slices, out);
  }
}

}  // namespace cleave
