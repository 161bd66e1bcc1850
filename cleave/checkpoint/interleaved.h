#pragma once
#include <cstddef>
#include <span>

#include "cleave/format/tensor_source.h"
#include "cleave/model/model.h"

namespace cleave {

/// Reads a block of a tensor whose files have the two halves of each rotary pair next to each
/// other, as Meta and GGUF store q and k of Llama: rows 2i and 2i + 1 of a head of
/// `stored.interleaved_rows` rows are rows i and i + rows/2 of the result. `out` has the block's
/// size.
void read_interleaved(const TensorSource& files, const StoredAs& stored,
                      std::span<const Slice> slices, std::span<std::byte> out);

}  // namespace cleave
