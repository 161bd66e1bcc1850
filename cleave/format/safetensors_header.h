#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "cleave/base/dtype.h"

namespace cleave {

/// A tensor as a file stores it.
struct TensorInfo {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
};

/// A tensor and where its bytes are: [begin, end) of the file with index `file`.
struct StoredTensor : TensorInfo {
  size_t file = 0;
  uint64_t begin = 0;
  uint64_t end = 0;
};

/// What the header of one safetensors file says.
struct SafetensorsHeader {
  std::vector<StoredTensor> tensors;            ///< in order of their bytes; file 0
  std::map<std::string, std::string> metadata;  ///< "__metadata__"
};

/// Largest header that is read, and most JSON values in it, about eight a tensor. The format's own
/// library reads 100 MB; no model comes near, and what is read takes time and memory.
inline constexpr uint64_t kMaxSafetensorsHeader = uint64_t{16} << 20;
inline constexpr size_t kMaxSafetensorsValues = size_t{1} << 18;

/// Size of the JSON text from a file's first 8 bytes (little-endian). Throws Error(kFormat) when it
/// is 0, above the limit or more than the file has.
uint64_t safetensors_header_size(const std::byte* first8, uint64_t file_size,
                                 const std::string& source);

/// Reads the JSON text of a header. `file_size` is that of the whole file: the tensors must cover
/// what follows the header exactly, without holes and overlaps. Throws Error(kFormat) naming
/// `source` and the tensor for anything that the format does not allow: text that does not begin
/// with '{' or ends in anything but spaces, duplicate names, unknown fields and dtypes, names with
/// control characters, shapes that do not match their bytes, more than 64 dims.
SafetensorsHeader parse_safetensors_header(std::string_view json, uint64_t file_size,
                                           const std::string& source);

}  // namespace cleave
