#pragma once
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cleave/checkpoint/save.h"
#include "cleave/file/file_lock.h"

namespace cleave::inline checkpoint {

/// The --out folder of a run: its checkpoints step_NNNNNNNN/ and the file `latest`, which names the
/// newest one; links make it a model folder for other programs (model_links.h). One run writes at a
/// time: rank 0 holds the folder's lock. Calls are collective.
class RunFolder {
 public:
  /// Makes the folder, takes its lock, removes partial files of dead writers, and sets `latest` to
  /// the newest intact checkpoint (a writer may have died just before it could). Keeps `keep_last`
  /// checkpoints, 0: all. Throws Error(kIo) naming pid and host if another run writes there, and on
  /// a rank that does not see the files of rank 0, because its host has another disk.
  RunFolder(std::filesystem::path path, Writers writers, int64_t keep_last = 0);
  ~RunFolder();  ///< does not wait for what a thread reads back
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

  /// Keeps the checkpoint of this step in addition to the newest, until the next call.
  void keep(int64_t step) { kept_step_ = step; }

  /// Checks that the disk has space for `num_saves` planned checkpoints like `checkpoint`, or for
  /// as many of them as exist at the same time: the newest ones, one that is being written, and the
  /// one of keep() if `keeps_one` says that it will be called. Only on rank 0; not collective.
  /// Throws Error(kIo) with the needed and the free space.
  void require_space(const Checkpoint& checkpoint, int64_t num_saves, bool keeps_one) const;

  /// Sets `latest` to this checkpoint of the folder and appends `suffix` to the names of newer
  /// ones. Returns their new paths on rank 0. Throws Error(kIo).
  std::vector<std::filesystem::path> go_back_to(const std::filesystem::path& checkpoint,
                                                const std::string& suffix);

  /// Writes step_NNNNNNNN, sets `latest` to it, then removes the oldest checkpoints beyond
  /// keep_last; nothing is removed before the new one was read back and found intact. A step that
  /// `latest` names already is not written again. A folder of that name without a manifest is
  /// renamed to end in .damaged, with a warning. Returns the checkpoint's folder. Throws as
  /// save_checkpoint does.
  std::filesystem::path save(const Checkpoint& checkpoint);

  /// The same, but a thread writes and reads back: returns as soon as this rank's tensors are
  /// copied. A second save waits for the first. poll_save() or wait_for_save() completes it.
  void async_save(const Checkpoint& checkpoint);

  /// Completes a pending async save if all ranks have written their parts; a later call, after they
  /// have read them back, removes the oldest checkpoints. Call it between steps. Returns whether
  /// the save is still pending. Rethrows an error of the threads.
  bool poll_save();
  /// Waits until all ranks have written and read back, and completes the async save. Call it before
  /// the program ends: otherwise the save is lost. Does nothing if no save is pending. Throws as
  /// poll_save().
  void wait_for_save();

 private:
  bool begin(const Checkpoint& checkpoint);
  void publish();
  void name_newest(const std::filesystem::path& checkpoint);
  void check_newest();
  void retire();

  std::filesystem::path path_;
  Writers writers_;
  int64_t keep_last_;
  std::optional<int64_t> kept_step_;  // of keep()
  std::unique_ptr<FileLock> lock_;
  std::filesystem::path target_;            // of save_
  std::unique_ptr<ShardedSave> save_;       // pending
  std::atomic<bool> is_left_ = false;       // ends the thread
  std::future<void> check_;                 // a thread reads target_ back; then old_ are removed
  std::vector<std::filesystem::path> old_;  // on the first rank
  bool has_warned_ = false;                 // that the model's files cannot be linked
};

/// The checkpoint that the run folder's `latest` names; nullopt if there is none. Throws
/// Error(kFormat) if `latest` does not hold a checkpoint's name.
std::optional<std::filesystem::path> newest_checkpoint(const std::filesystem::path& run);

/// The checkpoint from which a run resumes: the one that `latest` names, or a newer intact one that
/// was finished after `latest` was written (its writer died before it could name it). So writing an
/// older name into `latest` selects that checkpoint. nullopt if there is none. Throws as
/// newest_checkpoint.
std::optional<std::filesystem::path> checkpoint_to_resume(const std::filesystem::path& run);

/// An intact checkpoint, and the damage of newer ones.
struct IntactCheckpoint {
  std::filesystem::path path;
  std::vector<std::string> damage;  ///< one sentence for each newer one
};

/// The newest checkpoint of a run folder that matches its manifest byte for byte, but none that is
/// newer than one that a user has written into `latest`; each rank reads a share. nullopt if the
/// folder has no checkpoint. Unreadable files count as damage. Collective, with the same result on
/// all ranks. Throws if all checkpoints are damaged: Error(kIo) if one of them cannot be read,
/// otherwise Error(kFormat).
std::optional<IntactCheckpoint> newest_intact_checkpoint(const std::filesystem::path& run,
                                                         const Axis& world = {});

/// All finished checkpoints of a run folder, oldest first.
std::vector<std::filesystem::path> list_checkpoints(const std::filesystem::path& run);

/// Compares a checkpoint with its manifest; each rank reads a share. Collective: throws
/// Error(kFormat) naming the tensor or file on the rank that found the damage.
void verify_checkpoint(const std::filesystem::path& folder, const Axis& world);

}  // namespace cleave::inline checkpoint
