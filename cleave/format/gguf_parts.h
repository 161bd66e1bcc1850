#pragma once
#include <cstddef>
#include <filesystem>
#include <vector>

#include "cleave/format/gguf.h"

namespace cleave::inline format {

/// Most parts of a model: all of them are open at the same time.
inline constexpr int64_t kMaxGgufParts = 1024;

/// The files of a model that llama.cpp's gguf-split has divided, NAME-00001-of-0000N.gguf and so
/// on; `metadata` is that of the file `path`. Only `path` if it holds a whole model. Throws
/// Error(kFormat) if it is another part than the first, has another name, or is one of more than
/// kMaxGgufParts; Error(kIo) naming the first part that is not there.
std::vector<std::filesystem::path> gguf_part_paths(const GgufMetadata& metadata,
                                                   const std::filesystem::path& path);

/// Throws Error(kFormat) unless `metadata` is that of part `index` (from 0) of `count`.
void check_gguf_part(const GgufMetadata& metadata, size_t index, size_t count);

}  // namespace cleave::inline format
