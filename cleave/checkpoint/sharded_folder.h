#pragma once
#include <atomic>
#include <exception>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "cleave/checkpoint/load.h"
#include "cleave/file/folder_writer.h"
#include "cleave/format/safetensors_writer.h"
#include "cleave/mesh/axis.h"
#include "cleave/tokenizer/tokenizer.h"

namespace cleave::inline checkpoint {

/// The ranks that write a folder: `world` has all; those of `dp` have copies of this rank's
/// parameters and share the work.
struct Writers {
  Axis world, tp, dp;
};

/// A tensor of which each rank writes its part.
struct ShardedTensor {
  TensorInfo info;                       ///< of the whole
  const Parameter* parameter = nullptr;  ///< the tensor is sharded like this one
  Tensor local;  ///< of parameter->leaf_shape(); undefined if only other ranks have it
};

/// The tensors of STEM.safetensors (or its parts): the same list on every rank.
struct TensorGroup {
  std::string stem;
  std::vector<ShardedTensor> tensors;
  std::vector<CarriedTensor> carried{};
  std::map<std::string, std::string> metadata = {{"format", "pt"}};
  /// Further metadata of which a rank knows a part: a number, or -1 where another rank knows it.
  /// The same keys on every rank. Numbers equal to `usual_number` are not written.
  std::vector<std::pair<std::string, int64_t>> numbers{};
  int64_t usual_number = -1;
};

/// The contents of a folder. The same on every rank, except for the tensors' values.
struct FolderContents {
  std::vector<TensorGroup> groups;
  std::vector<NamedFile> files;  ///< NAME or FOLDER/NAME; written by the first rank
};

/// Writes files named NAME or FOLDER/NAME, and makes these folders.
void write_files(FolderWriter& folder, std::span<const NamedFile> files);
/// An upper bound on the disk space of such files and their lines in a manifest.
uint64_t disk_bytes(std::span<const NamedFile> files);

/// An upper bound on the folder's disk space, a few kilobytes above what is written.
uint64_t disk_bytes(const FolderContents& contents, const Writers& writers);

/// Writes a folder of whole tensors from many ranks; only checksums are gathered. The folder
/// appears under its name whole and with a manifest, or not at all.
///
/// Call write() or write_async(), then commit(). Construction and commit() are collective over
/// `world`. Throws Error(kIo) on the rank whose call failed, also if `target` exists already or the
/// disk has too little space; then nothing is under `target`.
class ShardedSave {
 public:
  /// Plans the files and makes them at their full size.
  ShardedSave(std::filesystem::path target, FolderContents contents, Writers writers);
  ~ShardedSave();  ///< waits for the thread of write_async()
  ShardedSave(const ShardedSave&) = delete;
  ShardedSave& operator=(const ShardedSave&) = delete;

  /// Writes this rank's ranges into place.
  void write();
  /// The same in a thread, from copies: the tensors may change after this returns.
  void write_async();
  /// Whether this rank's ranges are on the disk. Rethrows an error of the thread of write_async().
  [[nodiscard]] bool is_written() const;
  /// Waits for the ranges of all ranks; when it returns on any rank, the folder is on the disk.
  void commit();

 private:
  /// A block that this rank writes.
  struct Part {
    size_t group = 0;
    std::string_view tensor;
    std::vector<Slice> slices;
    Tensor values;
    std::span<const std::byte> bytes;
  };
  using Take = std::function<void(Part)>;
  void for_each_part(const Take& take) const;
  [[nodiscard]] bool is_mine(const ShardedTensor& tensor, size_t index) const;
  [[nodiscard]] std::vector<SafetensorsWriter> open_writers() const;
  void finish(std::vector<SafetensorsWriter>& writers);
  [[nodiscard]] bool is_first() const { return writers_.world.rank() == 0; }

  std::filesystem::path target_;
  FolderContents contents_;
  Writers writers_;
  std::vector<SafetensorsPlan> plans_;    // one for each group
  std::unique_ptr<FolderWriter> folder_;  // the first rank's
  std::vector<WrittenBlock> blocks_;      // of this rank, after writing
  std::thread thread_;
  std::exception_ptr failure_;            // of the thread, after it ended
  std::atomic<bool> is_writing_ = false;  // the thread is running
};

}  // namespace cleave::inline checkpoint
