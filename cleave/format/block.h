#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cleave/base/range.h"
#include "cleave/file/file.h"

namespace cleave::inline format {

/// Number of elements of a tensor of this shape. Throws Error(kFormat) naming `what` if it does not
/// fit in 64 bits or a size is negative.
uint64_t num_elements(std::span<const int64_t> shape, const std::string& what);

/// Contiguous bytes [offset, offset + bytes) of a tensor's row-major memory.
struct Piece {
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

/// Iterates over a block of a tensor: the intersection of slices of some of its dims; without
/// slices the whole tensor.
///
/// next() returns the contiguous pieces of the block in ascending order; adjacent pieces are
/// joined. Throws Error(kUsage) if a slice has a dim or an index outside the tensor, two slices
/// have the same dim, or ranges are not ascending.
class BlockWalk {
 public:
  BlockWalk(std::span<const int64_t> shape, int64_t item_bytes, std::span<const Slice> slices);

  /// Size of the block in bytes.
  [[nodiscard]] uint64_t bytes() const { return bytes_; }
  /// Offset after the last byte of the last piece.
  [[nodiscard]] uint64_t end() const { return end_; }
  /// The next piece; nullopt after the last.
  std::optional<Piece> next();

 private:
  std::optional<Piece> step();

  std::vector<std::vector<Range>> ranges_;  // of each dim down to the innermost sliced one
  std::vector<uint64_t> strides_;           // of these dims, in bytes
  std::vector<size_t> range_;               // current position: a range of each dim ...
  std::vector<int64_t> index_;              // ... and an index in it; unused for the last dim
  uint64_t bytes_ = 0;
  uint64_t end_ = 0;
  bool done_ = false;
  std::optional<Piece> pending_;
};

/// Where the elements of a tensor are in a file.
struct StoredElements {
  uint64_t begin = 0;  ///< byte offset of element 0
  int64_t item_bytes = 1;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides{};  ///< in elements; empty: row-major without gaps
};

/// Reads a block (the intersection of the slices; without slices the whole tensor), row-major, into
/// `out`, which must have the block's size. Reads only these bytes and small gaps between them, in
/// file order. `what` names the tensor in errors. Throws Error(kUsage) if the slices do not fit the
/// shape or `out` has another size, Error(kFormat) if the file is too short.
void read_elements(const File& file, const StoredElements& elements, std::span<const Slice> slices,
                   std::span<std::byte> out, const std::string& what);

}  // namespace cleave::inline format
