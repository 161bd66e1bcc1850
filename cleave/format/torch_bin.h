#pragma once
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cleave/format/tensor_source.h"
#include "cleave/format/torch_file.h"

namespace cleave::inline format {

/// Stem of .bin files in Hugging Face folders.
inline constexpr std::string_view kTorchBinStem = "pytorch_model";

/// A tensor of the torch file with index `file`.
struct TorchBinTensor : TensorInfo {
  SavedTensor saved;
  size_t file = 0;
};

/// The tensors of a torch file whose value is a dict from names to tensors, or of a folder with
/// pytorch_model.bin, or with pytorch_model.bin.index.json and the files that it names.
class TorchBin : public ListedTensors<TorchBinTensor> {
 public:
  /// Throws Error(kIo) if none of these exists, Error(kFormat) if a file is not a torch file or is
  /// not a dict from names to tensors, or the index does not match the files.
  static TorchBin open(const std::filesystem::path& path);

  void read_block(std::string_view name, std::span<const Slice> slices,
                  std::span<std::byte> out) const override;
  [[nodiscard]] std::string path() const override { return path_; }
  [[nodiscard]] std::vector<std::string> file_names() const override { return names_; }

 private:
  void add_file(TorchFile file, std::string name);

  std::string path_;
  std::vector<TorchFile> files_;
  std::vector<std::string> names_;
};

/// The tensors of a state dict, in order. Throws Error(kFormat) naming `source` and the key if the
/// value is not a dict from names to tensors.
std::vector<std::pair<std::string, SavedTensor>> state_dict_tensors(const SavedValue& value,
                                                                    const std::string& source);

/// Whether `folder` has pytorch_model.bin or its index.
bool has_torch_bin(const std::filesystem::path& folder);

}  // namespace cleave::inline format
