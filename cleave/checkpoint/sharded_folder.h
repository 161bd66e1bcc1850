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
#include <vector>

#include "cleave/checkpoint/load.h"
#include "cleave/file/folder_writer.h"
#include "cleave/format/safetensors_writer.h"
#include "cleave/mesh/axis.h"
#include "cleave/tokenizer/tokenizer.h"

namespace cleave {

/// The ranks that write: `world` has them all, `dp` those with copies of this rank's parameters,
/// which share the work.
struct Writers {
  Axis world, tp, dp;
};

/// A tensor that the ranks write together, each its part.
struct ShardedTensor {
  TensorInfo info;                       ///< of the whole
  const Parameter* parameter = nullptr;  ///< the tensor is cut as this one
  Tensor local;  ///< of parameter->leaf_shape(); undefined where other ranks have it
};

/// The tensors of STEM.safetensors (or its parts): the same list on every rank.
struct TensorGroup {
  std::string stem;
  std::vector<ShardedTensor> tensors;
  std::vector<CarriedTensor> carried{};
  std::map<std::string, std::string> metadata = {{"format", "pt"}};
};

/// What a folder is made of. The same on every rank, but for the tensors' values.
struct FolderContents {
  std::vector<TensorGroup> groups;
  std::vector<NamedFile> files;  ///< written by the first rank
};

/// A bound on what the folder takes on a disk, a few kilobytes above what is written.
uint64_t disk_bytes(const FolderContents& contents, const Writers& writers);

/// A folder of whole tensors that many ranks write: nothing is gathered but checksums. It appears
/// under its name, whole and with a manifest, or not at all.
///
/// One of write() and write_async(), then commit(). Construction and commit are collective over
/// `world`. Throws Error(kIo) on the rank whose call failed, also when `target` exists already or
/// the disk has too little space; nothing is under `target` then.
class ShardedSave {
 public:
  /// Plans the files and makes them at their whole size.
  ShardedSave(std::filesystem::path target, FolderContents contents, Writers writers);
  ~ShardedSave();  ///< waits for what is being written
  ShardedSave(const ShardedSave&) = delete;
  ShardedSave& operator=(const ShardedSave&) = delete;

  /// Writes this rank's ranges into place.
  void write();
  /// The same in a thread, from copies: the tensors may change as soon as this returns.
  void write_async();
  /// Whether this rank's ranges are on the disk. Throws what a thread of write_async threw.
  [[nodiscard]] bool is_written() const;
  /// Waits for the ranges of all ranks; the folder is on the disk when this returns on any.
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
  std::vector<SafetensorsPlan> plans_;    // one a group
  std::unique_ptr<FolderWriter> folder_;  // the first rank's
  std::vector<WrittenBlock> blocks_;      // this rank's, once written
  std::thread thread_;
  std::exception_ptr failure_;           // the thread's, once ended
  std::atomic<bool> is_writing_ = false;  // the thread is at work
};

}  // namespace cleave
