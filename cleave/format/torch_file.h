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

namespace cleave {

/// A file that torch.save wrote, open for reading: pytorch_model.bin, checkpoint.pt.
///
/// Opening reads the zip directory and the pickle; the bytes of tensors are read in blocks. Nothing
/// in the file can run (pickle.h). Any number of threads may read.
class TorchFile {
 public:
  /// Throws Error(kIo), or Error(kFormat) when it is no such file: also for the form from before
  /// torch 1.6 (no zip file), for TorchScript programs, for big-endian files, for a storage that is
  /// missing or of another size than its tensors say.
  static TorchFile open(const std::filesystem::path& path);
  explicit TorchFile(File file);

  /// What torch.load gives.
  [[nodiscard]] const SavedValue& value() const { return value_; }
  [[nodiscard]] const std::string& path() const { return file_.path(); }

  /// Copies what the slices have in common, row-major, into `out`; no slices: the whole tensor,
  /// which is one of value(). Throws Error(kUsage) when slices or `out` do not fit the tensor.
  void read_block(const SavedTensor& tensor, std::span<const Slice> slices,
                  std::span<std::byte> out) const;

 private:
  File file_;
  SavedValue value_;
  std::vector<ZipEntry> storages_;
};

/// The ending of such files in Hugging Face folders: ".bin"; in others: ".pt".
bool is_torch_file_name(std::string_view name);

}  // namespace cleave
