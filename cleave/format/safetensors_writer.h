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

namespace cleave {

/// "STEM.safetensors", or "STEM-00001-of-0000N.safetensors": the name of part `number` (from 0) of
/// `count`.
std::string part_file_name(std::string_view stem, std::string_view extension, size_t number,
                           size_t count);

/// Text of an index file: which file has which tensor, in this order, and their bytes in all.
std::string index_json(const std::vector<std::pair<std::string, std::string>>& tensor_files,
                       uint64_t total_bytes);

/// A safetensors file that is to be written.
struct PlannedFile {
  std::string name;
  std::string head;   ///< length, JSON and padding: everything before the data
  uint64_t size = 0;  ///< of the whole file
};

struct SafetensorsPlanOptions {
  std::string stem = "model";
  uint64_t max_file_bytes = 5'000'000'000;  ///< of tensors in one file; a larger one is alone
  std::map<std::string, std::string> metadata = {{"format", "pt"}};
};

/// Where every tensor of a new model goes, known before a byte is written and alike on all ranks:
/// STEM.safetensors, or STEM-00001-of-0000N.safetensors with an index. Data begins at a multiple
/// of 8 and every tensor at a multiple of its element size.
class SafetensorsPlan {
 public:
  /// `tensors` in the order they are filled into files. Throws Error(kUsage) for a doubled name.
  explicit SafetensorsPlan(const std::vector<TensorInfo>& tensors,
                           const SafetensorsPlanOptions& options = {});

  [[nodiscard]] const std::vector<PlannedFile>& files() const { return files_; }
  [[nodiscard]] const std::vector<StoredTensor>& tensors() const { return tensors_; }
  [[nodiscard]] uint64_t total_bytes() const;  ///< of all files
  /// Text of STEM.safetensors.index.json; empty for a single file.
  [[nodiscard]] const std::string& index_json() const { return index_json_; }

  /// One rank makes all files with their heads, and the index.
  void create_files(FolderWriter& folder) const;

 private:
  std::vector<PlannedFile> files_;
  std::vector<StoredTensor> tensors_;
  std::string index_json_, index_name_;
};

/// What one call of write_block wrote, for the manifest.
struct WrittenBlock {
  std::string file;
  std::string tensor;
  std::vector<Slice> slices;  ///< none: the whole tensor
  uint64_t checksum = 0;      ///< hash_bytes of the block, row-major
};

/// Writes blocks of planned tensors straight into place, one object a rank.
class SafetensorsWriter {
 public:
  /// `folder` holds the files that `plan` made; they are opened when first written.
  SafetensorsWriter(std::filesystem::path folder, const SafetensorsPlan& plan);

  /// Writes what the slices have in common, row-major in `data`. Nothing is written and recorded
  /// for an empty block, unless the tensor itself is empty. Throws Error(kUsage) for an unknown
  /// tensor or a wrong size, Error(kIo).
  void write_block(std::string_view tensor, std::vector<Slice> slices,
                   std::span<const std::byte> data);
  /// Syncs and closes the files; what was written. After it the object writes no more.
  std::vector<WrittenBlock> finish();

 private:
  std::filesystem::path folder_;
  const SafetensorsPlan& plan_;
  std::map<std::string_view, const StoredTensor*> by_name_;
  std::map<size_t, File> open_;
  std::vector<WrittenBlock> written_;
};

}  // namespace cleave
