#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "cleave/base/dtype.h"

namespace cleave::inline format {

/// Name, dtype and shape of a tensor in a file.
struct TensorInfo {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
};

/// A tensor whose bytes are [begin, end) of the file with index `file`.
struct StoredTensor : TensorInfo {
  size_t file = 0;
  uint64_t begin = 0;
  uint64_t end = 0;
};

/// The header of one safetensors file.
struct SafetensorsHeader {
  std::vector<StoredTensor> tensors;            ///< in order of their offsets; file index 0
  std::map<std::string, std::string> metadata;  ///< "__metadata__"
};

/// Largest header in bytes. The reference library reads up to 100 MB, but no model comes near that
/// size, and a smaller limit bounds time and memory.
inline constexpr uint64_t kMaxSafetensorsHeader = uint64_t{16} << 20;
/// Most JSON values in a header; a tensor has about eight.
inline constexpr size_t kMaxSafetensorsValues = size_t{1} << 18;

/// Size of the header's JSON text, from a file's first 8 bytes (little-endian). Throws
/// Error(kFormat) if it is 0, above the limit, or larger than the file.
uint64_t safetensors_header_size(const std::byte* first8, uint64_t file_size,
                                 const std::string& source);

/// Parses the JSON text of a header. `file_size` is the size of the whole file: the tensors must
/// cover all bytes after the header without holes and overlaps. Throws Error(kFormat) naming
/// `source` and the tensor for anything that the format does not allow: text that does not begin
/// with '{' or does not end with '}' and spaces, duplicate names, unknown fields and dtypes, names
/// with control characters, shapes that do not match their bytes, more than 64 dims.
SafetensorsHeader parse_safetensors_header(std::string_view json, uint64_t file_size,
                                           const std::string& source);

}  // namespace cleave::inline format
