#pragma once
#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cleave/base/range.h"
#include "cleave/file/file.h"
#include "cleave/format/pickle.h"
#include "cleave/format/saved_value.h"
#include "cleave/format/zip.h"

namespace cleave::inline format {

/// A file that torch.save wrote (pytorch_model.bin, checkpoint.pt), open for reading.
///
/// Opening reads the zip directory and the pickle; tensors are read later, in blocks. No code in
/// the file can run (pickle.h). Any number of threads may read.
class TorchFile {
 public:
  /// Throws Error(kIo), and Error(kFormat) if the file is invalid: also for the format from before
  /// torch 1.6 (not a zip file), for TorchScript programs, for big-endian files, and for storages
  /// that are missing or do not have the declared size.
  static TorchFile open(const std::filesystem::path& path);
  explicit TorchFile(File file);

  /// The value that torch.load would return.
  [[nodiscard]] const SavedValue& value() const { return value_; }
  [[nodiscard]] const std::string& path() const { return file_.path(); }

  /// Reads a block (the intersection of the slices; without slices the whole tensor), row-major,
  /// into `out`. `tensor` is part of value(). Throws Error(kUsage) if slices or `out` do not fit
  /// it.
  void read_block(const SavedTensor& tensor, std::span<const Slice> slices,
                  std::span<std::byte> out) const;

 private:
  File file_;
  SavedValue value_;
  std::vector<ZipEntry> storages_;
};

/// Whether the name ends in ".bin" (as in Hugging Face folders) or ".pt".
bool is_torch_file_name(std::string_view name);

}  // namespace cleave::inline format
