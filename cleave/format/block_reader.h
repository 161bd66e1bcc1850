#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cleave/base/range.h"
#include "cleave/file/file.h"

namespace cleave {

/// A tensor's elements in a file: element 0 at byte `begin`, the next index of a dim `strides`
/// elements further.
struct StoredElements {
  uint64_t begin = 0;
  int64_t item_bytes = 1;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides{};  ///< empty: row-major without gaps
};

/// Copies what the slices have in common, row-major, into `out`, whose size is that of the block;
/// no slices: all. Reads these bytes alone (and small gaps between them), in the order in which the
/// file has them. `what` names the tensor in errors. Throws Error(kUsage) for slices that the shape
/// does not have or `out` of another size, Error(kFormat) when the file ends before.
void read_elements(const File& file, const StoredElements& elements, std::span<const Slice> slices,
                   std::span<std::byte> out, const std::string& what);

}  // namespace cleave
