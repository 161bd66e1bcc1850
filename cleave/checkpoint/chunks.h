#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "cleave/format/tensor_source.h"

namespace cleave {

/// The most bytes of a tensor that are in memory at a time.
inline constexpr uint64_t kChunkBytes = uint64_t{8} << 20;

/// Divides a block of a tensor into pieces of at most kChunkBytes (or of one index of dim 0, if
/// that is more) and calls `take` with the slices of each, in order. An empty block has one empty
/// piece.
void for_each_chunk(const TensorInfo& tensor, const std::vector<Slice>& slices,
                    const std::function<void(const std::vector<Slice>&)>& take);

}  // namespace cleave
