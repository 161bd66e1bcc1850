#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cleave/format/saved_value.h"

namespace cleave {

/// A storage as a pickle names it: torch keeps its bytes in a file of its own.
struct SavedStorage {
  std::string key;  ///< name of the storage's entry, below "data/"
  DType dtype = DType::kF32;
  uint64_t num_elements = 0;
};

/// A pickle without its storages' bytes.
struct Unpickled {
  SavedValue value;
  std::vector<SavedStorage> storages;
};

/// Largest pickle that is read, and the most values that one may hold: about 12,000 tensors.
inline constexpr uint64_t kMaxPickleBytes = uint64_t{64} << 20;
inline constexpr uint64_t kMaxPickleValues = 240'000;
inline constexpr int kMaxPickleDepth = 64;
/// A pickle may name a value many times; by how many bytes its texts and shapes, repeated ones
/// counted, may then be more than the pickle itself.
inline constexpr uint64_t kMaxPickleGrowth = uint64_t{4} << 20;

/// Reads a pickle as torch.save writes it for plain tensors (protocol 2). Nothing in it can run:
/// there is no interpreter, and of all names that a pickle may call only 14 are known, each a
/// constructor of a value; another one is refused by its name.
///
/// Throws Error(kFormat) naming `source` and the byte for unknown operations and names, a stack
/// that does not add up, keys that are there twice or are neither text nor integer, integers above
/// 64 bits, tensors outside of their storage, nesting deeper than kMaxPickleDepth, values that
/// contain themselves.
Unpickled read_pickle(std::string_view bytes, const std::string& source);

/// The same form for torch: what torch.load(weights_only=True) reads. Storage i of the value is
/// stored under the key "i"; `storages` gives their sizes. Throws Error(kUsage) for a tensor whose
/// storage is not among them.
std::string write_pickle(const SavedValue& value, const std::vector<SavedStorage>& storages);

}  // namespace cleave
