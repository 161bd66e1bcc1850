#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cleave/file/file.h"
#include "cleave/format/pickle.h"
#include "cleave/format/safetensors_header.h"
#include "cleave/format/saved_value.h"
#include "cleave/format/zip.h"

namespace cleave::inline format {

/// A dict from names to tensors; tensor i is the whole of storage i.
SavedValue state_dict_of(const std::vector<TensorInfo>& tensors);

/// The layout of a torch file, computed before any tensor is written. The file loads with
/// torch.load(weights_only=True). Equal values give equal files.
class TorchPlan {
 public:
  /// The value's tensors use storages 0, 1, ... without gaps. Throws Error(kUsage) if they do not,
  /// or if a pickle cannot contain the value.
  explicit TorchPlan(const SavedValue& value);

  [[nodiscard]] uint64_t total_bytes() const { return zip_.total_bytes(); }  ///< of the file
  [[nodiscard]] const std::vector<SavedStorage>& storages() const { return storages_; }

 private:
  friend class TorchWriter;
  std::vector<SavedStorage> storages_;
  std::string pickle_;
  ZipPlan zip_;
};

/// Writes one torch file. The bytes of a storage are written in pieces, in order, so that no whole
/// tensor has to be in memory.
class TorchWriter {
 public:
  /// `file` is empty or has the planned size.
  TorchWriter(File file, const TorchPlan& plan);

  /// Writes the next bytes of a storage. Throws Error(kUsage) if they exceed its size, Error(kIo).
  void write(size_t storage, std::span<const std::byte> bytes);
  /// Writes everything else, syncs and closes the file. Throws Error(kUsage) if a storage is
  /// incomplete, Error(kIo).
  void finish();

 private:
  struct Progress {
    uint64_t written = 0;
    uint32_t checksum = 0;
  };
  File file_;
  const TorchPlan& plan_;
  std::vector<Progress> progress_;
};

}  // namespace cleave::inline format
