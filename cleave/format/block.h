#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cleave/base/range.h"

namespace cleave {

/// Elements of a tensor of this shape. Throws Error(kFormat) naming `what` when they do not fit in
/// 64 bits or a size is negative.
uint64_t num_elements(std::span<const int64_t> shape, const std::string& what);

/// Contiguous bytes of a tensor: [offset, offset + bytes) of its row-major memory.
struct Piece {
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

/// A block of a tensor: what slices of some of its dims have in common, row-major.
///
/// Walks the block's contiguous pieces in ascending order without listing them; pieces that touch
/// come as one. No slices: the whole tensor. Throws Error(kUsage) when a slice names a dim or an
/// index outside of the tensor, names a dim twice, or its ranges do not ascend.
class BlockWalk {
 public:
  BlockWalk(std::span<const int64_t> shape, int64_t item_bytes, std::span<const Slice> slices);

  /// All bytes of the block.
  [[nodiscard]] uint64_t bytes() const { return bytes_; }
  /// Offset after the last byte of the last piece.
  [[nodiscard]] uint64_t end() const { return end_; }
  /// The next piece; nothing after the last.
  std::optional<Piece> next();

 private:
  std::optional<Piece> step();

  std::vector<std::vector<Range>> ranges_;  // of each dim down to the innermost cut one
  std::vector<uint64_t> strides_;           // bytes from one index to the next, same dims
  std::vector<size_t> range_;               // where the walk is: a range of each dim ...
  std::vector<int64_t> index_;              // ... and an index in it; the last dim goes by ranges
  uint64_t bytes_ = 0;
  uint64_t end_ = 0;
  bool done_ = false;
  std::optional<Piece> pending_;
};

}  // namespace cleave
