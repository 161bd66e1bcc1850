#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cleave/base/range.h"
#include "cleave/file/folder_writer.h"
#include "cleave/format/safetensors_header.h"

namespace cleave::inline format {

/// The name of part `number` (from 0) of `count`: "STEM.safetensors" for one part, otherwise
/// "STEM-00001-of-0000N.safetensors".
std::string part_file_name(std::string_view stem, std::string_view extension, size_t number,
                           size_t count);

/// The text of an index file: the file of each tensor, in this order, and the total bytes.
std::string index_json(const std::vector<std::pair<std::string, std::string>>& tensor_files,
                       uint64_t total_bytes);

/// A safetensors file to be written.
struct PlannedFile {
  std::string name;
  std::string head;   ///< length, JSON and padding: everything before the data
  uint64_t size = 0;  ///< of the whole file in bytes
};

/// How tensors are distributed over files.
struct SafetensorsPlanOptions {
  std::string stem = "model";
  uint64_t max_file_bytes = 5'000'000'000;  ///< of tensors per file; a larger tensor is alone
  std::map<std::string, std::string> metadata = {{"format", "pt"}};
};

/// The files and offsets of all tensors of a new model, computed before a byte is written and the
/// same on all ranks: STEM.safetensors, or STEM-00001-of-0000N.safetensors with an index. Data
/// begins at a multiple of 8 bytes and every tensor at a multiple of its element size.
class SafetensorsPlan {
 public:
  /// `tensors` in the order in which they fill the files. Throws Error(kUsage) for duplicate names.
  explicit SafetensorsPlan(const std::vector<TensorInfo>& tensors,
                           const SafetensorsPlanOptions& options = {});

  [[nodiscard]] const std::vector<PlannedFile>& files() const { return files_; }
  [[nodiscard]] const std::vector<StoredTensor>& tensors() const { return tensors_; }
  [[nodiscard]] uint64_t total_bytes() const;  ///< of all files and the index
  /// Text of STEM.safetensors.index.json; empty for a single file.
  [[nodiscard]] const std::string& index_json() const { return index_json_; }

  /// Creates all files with their heads, and the index. For one rank.
  void create_files(FolderWriter& folder) const;

 private:
  std::vector<PlannedFile> files_;
  std::vector<StoredTensor> tensors_;
  std::string index_json_, index_name_;
};

/// A block that write_block() wrote, for the manifest.
struct WrittenBlock {
  std::string file;
  std::string tensor;
  std::vector<Slice> slices;  ///< empty: the whole tensor
  uint64_t checksum = 0;      ///< hash_bytes() of the block, row-major
};

/// Writes blocks of planned tensors in place. Each rank has its own writer.
class SafetensorsWriter {
 public:
  /// `folder` contains the files that create_files() made; they are opened on the first write.
  SafetensorsWriter(std::filesystem::path folder, const SafetensorsPlan& plan);

  /// Writes a block (the intersection of the slices; without slices the whole tensor) from
  /// row-major `data`. An empty block is recorded only if the tensor itself is empty. Throws
  /// Error(kUsage) for an unknown tensor or a wrong size, Error(kIo).
  void write_block(std::string_view tensor, std::vector<Slice> slices,
                   std::span<const std::byte> data);
  /// Syncs and closes the files and returns the written blocks. No write may follow.
  std::vector<WrittenBlock> finish();

 private:
  std::filesystem::path folder_;
  const SafetensorsPlan& plan_;
  std::map<std::string_view, const StoredTensor*> by_name_;
  std::map<size_t, File> open_;
  std::vector<WrittenBlock> written_;
};

}  // namespace cleave::inline format
