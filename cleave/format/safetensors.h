#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cleave/base/range.h"
#include "cleave/file/file.h"
#include "cleave/format/safetensors_header.h"
#include "cleave/format/tensor_source.h"

namespace cleave::inline format {

/// A safetensors file, open for reading.
struct TensorFile {
  std::string name;     ///< in its folder
  uint64_t data_begin;  ///< first byte after the header
  std::map<std::string, std::string> metadata;
  File file;
};

/// The tensors of a safetensors file, or of a folder with one file, or with several and an index.
///
/// Opening reads only the headers. Data is read with pread, not mmap, so a file that is truncated
/// meanwhile gives Error(kFormat), not SIGBUS. Any number of threads may read.
class Safetensors : public ListedTensors<StoredTensor> {
 public:
  /// `path` is a file, or a folder with STEM.safetensors, or with STEM.safetensors.index.json and
  /// the files that it names. Throws Error(kIo) if none of these exists, Error(kFormat) if a file
  /// is invalid or the index does not match its files.
  static Safetensors open(const std::filesystem::path& path, std::string_view stem = "model");

  [[nodiscard]] const std::vector<TensorFile>& files() const { return files_; }

  /// Reads a block (the intersection of the slices; without slices the whole tensor), row-major,
  /// into `out` of block_bytes() bytes. Reads only these bytes and small gaps between them.
  void read_block(const StoredTensor& tensor, std::span<const Slice> slices,
                  std::span<std::byte> out) const;

  void read_block(std::string_view name, std::span<const Slice> slices,
                  std::span<std::byte> out) const override {
    read_block(at(name), slices, out);
  }
  [[nodiscard]] std::string path() const override { return path_; }
  [[nodiscard]] std::vector<std::string> file_names() const override;

 private:
  void add_file(File file, std::string name);

  std::string path_;
  std::vector<TensorFile> files_;
};

/// Whether `folder` has STEM.safetensors or its index.
bool has_safetensors(const std::filesystem::path& folder, std::string_view stem = "model");

}  // namespace cleave::inline format
