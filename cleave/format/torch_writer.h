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

namespace cleave {

/// A dict from names to tensors, tensor i the whole of storage i.
SavedValue state_dict_of(const std::vector<TensorInfo>& tensors);

/// A torch file whose size and places are known before a tensor's byte is written. It loads with
/// torch.load(weights_only=True). Equal values give equal files.
class TorchPlan {
 public:
  /// The value's tensors name their storages 0, 1, ... without gaps. Throws Error(kUsage) when they
  /// do not, or what a pickle cannot hold.
  explicit TorchPlan(const SavedValue& value);

  [[nodiscard]] uint64_t total_bytes() const { return zip_.total_bytes(); }  ///< of the file
  [[nodiscard]] const std::vector<SavedStorage>& storages() const { return storages_; }

 private:
  friend class TorchWriter;
  std::vector<SavedStorage> storages_;
  std::string pickle_;
  ZipPlan zip_;
};

/// Writes one torch file; the bytes of a storage come in pieces, in order, so that no tensor is
/// ever held whole.
class TorchWriter {
 public:
  /// `file` is new and empty, or has the planned size.
  TorchWriter(File file, const TorchPlan& plan);

  /// The next bytes of a storage. Throws Error(kUsage) when they are more than it has, Error(kIo).
  void write(size_t storage, std::span<const std::byte> bytes);
  /// Writes everything else, syncs and closes the file. Throws Error(kUsage) when a storage misses
  /// bytes, Error(kIo).
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

}  // namespace cleave
