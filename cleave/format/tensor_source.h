#pragma once
#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cleave/base/range.h"
#include "cleave/format/safetensors_header.h"

namespace cleave {

/// Named tensors in files of some format: what models and tools read weights from.
class TensorSource {
 public:
  virtual ~TensorSource() = default;

  /// In order of file and place. Names are unique.
  [[nodiscard]] virtual std::vector<TensorInfo> list() const = 0;
  /// Null when there is no such tensor / Error(kFormat) with the nearest names.
  [[nodiscard]] virtual const TensorInfo* find(std::string_view name) const = 0;
  [[nodiscard]] const TensorInfo& at(std::string_view name) const;
  /// Copies what the slices have in common, row-major, into `out`, which has block_bytes(); no
  /// slices: the whole tensor. Only these bytes are read (and small gaps). Any number of threads
  /// may read. Throws as at() does, Error(kUsage) for slices or memory that do not fit.
  virtual void read_block(std::string_view name, std::span<const Slice> slices,
                          std::span<std::byte> out) const = 0;
  /// The file or folder, for messages; the names of all files that are read.
  [[nodiscard]] virtual std::string path() const = 0;
  [[nodiscard]] virtual std::vector<std::string> file_names() const = 0;
};

/// Bytes of a block of a tensor, as read_block fills.
uint64_t block_bytes(const TensorInfo& tensor, std::span<const Slice> slices);

/// The tensors of a file, or of a model folder: STEM.safetensors or pytorch_model.bin, each alone
/// or in parts with an index; safetensors first where both are. Throws Error(kIo) when nothing of
/// that is there, Error(kFormat) when the files are not as their format says.
std::unique_ptr<TensorSource> open_tensors(const std::filesystem::path& path,
                                           std::string_view stem = "model");

/// "weight_map" of an index file: tensor to file name. Throws Error(kFormat) also for names that
/// are paths.
std::map<std::string, std::string> read_weight_map(const std::filesystem::path& path);

/// Compares an index with the tensors found, name to file. Throws Error(kFormat) for the first
/// tensor that is missing, elsewhere, or not in the index.
void check_weight_map(const std::map<std::string, std::string>& weight_map,
                      const std::map<std::string, std::string>& found, const std::string& source);

/// Most bytes of a tensor's name.
inline constexpr size_t kMaxTensorName = size_t{64} << 10;

/// Throws Error(kFormat) for a tensor's name that is empty, too long or has control characters.
void check_tensor_name(std::string_view name, const std::string& source);

}  // namespace cleave
