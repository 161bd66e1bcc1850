#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "cleave/base/range.h"
#include "cleave/file/file.h"
#include "cleave/format/safetensors_header.h"
#include "cleave/format/tensor_source.h"

namespace cleave {

/// A file of a model, open for reading.
struct TensorFile {
  std::string name;     ///< in its folder
  uint64_t data_begin;  ///< first byte after the header
  std::map<std::string, std::string> metadata;
  File file;
};

/// The tensors of a safetensors file, or of a folder with one file or several and an index.
///
/// Opening reads the headers alone. Data is read through descriptors, never through a mapping, so
/// a file that is cut meanwhile is an Error(kFormat), not a signal. Any number of threads may read.
class Safetensors : public TensorSource {
 public:
  /// `path` is a file, or a folder that holds STEM.safetensors or STEM.safetensors.index.json
  /// with the files that it names. Throws Error(kIo) when nothing of that is there, Error(kFormat)
  /// when a file, or the index against its files, is not as the format says.
  static Safetensors open(const std::filesystem::path& path, std::string_view stem = "model");

  /// In order of file and place. Names are unique.
  [[nodiscard]] const std::vector<StoredTensor>& tensors() const { return tensors_; }
  [[nodiscard]] const std::vector<TensorFile>& files() const { return files_; }
  /// Null when there is no such tensor / Error(kFormat) with the nearest names.
  [[nodiscard]] const StoredTensor* find(std::string_view name) const override;
  [[nodiscard]] const StoredTensor& at(std::string_view name) const;

  /// Copies what the slices have in common, row-major, into `out`, whose size is block_bytes();
  /// no slices: the whole tensor. Only these bytes are read (and small gaps between them).
  void read_block(const StoredTensor& tensor, std::span<const Slice> slices,
                  std::span<std::byte> out) const;

  [[nodiscard]] std::vector<TensorInfo> list() const override;
  void read_block(std::string_view name, std::span<const Slice> slices,
                  std::span<std::byte> out) const override {
    read_block(at(name), slices, out);
  }
  [[nodiscard]] std::string path() const override { return path_; }
  [[nodiscard]] std::vector<std::string> file_names() const override;

 private:
  void add_file(File file, std::string name);
  void index_names();

  std::string path_;
  std::vector<TensorFile> files_;
  std::vector<StoredTensor> tensors_;
  std::unordered_map<std::string_view, size_t> by_name_;
};

/// Whether `folder` holds STEM.safetensors or its index.
bool has_safetensors(const std::filesystem::path& folder, std::string_view stem = "model");

}  // namespace cleave
