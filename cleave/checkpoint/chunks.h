#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "cleave/format/tensor_source.h"

namespace cleave {

/// Bytes of a tensor that pass through memory at once.
inline constexpr uint64_t kChunkBytes = uint64_t{8} << 20;

/// A block of a tensor in pieces of at most kChunkBytes, or of one index of dim 0 where that is
/// more: `take` sees the slices of each piece, in order, so that the pieces joined are the block.
/// An empty block has one empty piece.
void for_each_chunk(const TensorInfo& tensor, const std::vector<Slice>& slices,
                    const std::function<void(const std::vector<Slice>&)>& take);

}  // namespace cleave
