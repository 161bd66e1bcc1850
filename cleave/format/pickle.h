#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cleave/format/saved_value.h"

namespace cleave::inline format {

/// A storage that a pickle refers to. Its bytes are in a separate entry of the zip file.
struct SavedStorage {
  std::string key;  ///< name of that entry below "data/"
  DType dtype = DType::kF32;
  uint64_t num_elements = 0;
};

/// The content of a pickle; without the bytes of its storages.
struct Unpickled {
  SavedValue value;
  std::vector<SavedStorage> storages;
};

/// Largest pickle in bytes.
inline constexpr uint64_t kMaxPickleBytes = uint64_t{64} << 20;
/// Most values in a pickle, enough for about 12,000 tensors.
inline constexpr uint64_t kMaxPickleValues = 240'000;
/// Deepest nesting of values.
inline constexpr int kMaxPickleDepth = 64;
/// A pickle may use a value several times. Its strings and shapes, counted with repetitions, may
/// have this many bytes more than the pickle.
inline constexpr uint64_t kMaxPickleGrowth = uint64_t{4} << 20;

/// Reads a pickle of plain tensors as torch.save writes it (protocol 2). No code from the pickle
/// can run: only 14 names are known, each a constructor of a value or an element type; any other
/// name is refused.
///
/// Throws Error(kFormat) naming `source` and the byte for unknown operations and names, an invalid
/// stack, duplicate keys, keys that are neither string nor integer, integers above 64 bits, tensors
/// outside their storage, nesting deeper than kMaxPickleDepth, and values that contain themselves.
Unpickled read_pickle(std::string_view bytes, const std::string& source);

/// Writes a pickle that torch.load(weights_only=True) reads. `storages` has the key, dtype and size
/// of each storage. Throws Error(kUsage) for a tensor whose storage is not among them.
std::string write_pickle(const SavedValue& value, const std::vector<SavedStorage>& storages);

}  // namespace cleave::inline format
