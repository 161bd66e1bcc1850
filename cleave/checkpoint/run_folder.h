#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cleave/checkpoint/save.h"
#include "cleave/file/file_lock.h"

namespace cleave {

/// The --out folder of a run: its checkpoints step_NNNNNNNN/ and the file `latest`, which names the
/// newest. One run writes at a time; the first rank holds the lock. Calls are collective.
class RunFolder {
 public:
  /// Makes the folder, takes its lock, removes what dead writers left, and lets `latest` name the
  /// newest whole checkpoint (a writer may have died just before it could). `keep_last` checkpoints
  /// are kept, 0: all. Throws Error(kIo) naming pid and host when another run writes there.
  RunFolder(std::filesystem::path path, Writers writers, int64_t keep_last = 0);

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

  /// Asks for the disk space of the `num_saves` checkpoints that are to come, `checkpoint` one of
  /// them, as many as will be there at once. For the first rank alone, no collective. Throws
  /// Error(kIo) with what is needed and what is free.
  void require_space(const Checkpoint& checkpoint, int64_t num_saves) const;

  /// Lets `latest` name this checkpoint of the folder; newer ones get names that end in `suffix`.
  /// Returns these on the first rank. Throws Error(kIo).
  std::vector<std::filesystem::path> go_back_to(const std::filesystem::path& checkpoint,
                                                const std::string& suffix);

  /// Writes step_NNNNNNNN, lets `latest` name it, then removes the oldest ones beyond keep_last;
  /// nothing is removed before the new one was read back and found whole. A step that `latest`
  /// names already is not written again. Returns its folder. Throws as save_checkpoint does.
  std::filesystem::path save(const Checkpoint& checkpoint);

  /// The same, but returns as soon as this rank has copied what it writes; a thread writes it. At
  /// most one save is on its way: a second waits for the first. settle() ends it.
  void async_save(const Checkpoint& checkpoint);

  /// Called between steps: where all ranks have written, commits, names and retires as save() does.
  /// With kWait it waits for them: before the program ends, or what is on its way is lost. Whether
  /// a save is still on its way. Throws what went wrong in a thread.
  enum class Settle : uint8_t { kIfWritten, kWait };
  bool settle(Settle when);

 private:
  bool begin(const Checkpoint& checkpoint);
  void publish();
  void retire(const std::filesystem::path& newest);

  std::filesystem::path path_;
  Writers writers_;
  int64_t keep_last_;
  std::unique_ptr<FileLock> lock_;
  std::filesystem::path target_;       // of save_
  std::unique_ptr<ShardedSave> save_;  // on its way
};

/// The checkpoint that the run folder's `latest` names; nothing when there is none. Throws
/// Error(kFormat) when `latest` does not hold a checkpoint's name.
std::optional<std::filesystem::path> newest_checkpoint(const std::filesystem::path& run);

/// What a run goes on from: the checkpoint that `latest` names, or a newer whole one that was
/// finished after `latest` was written: its writer died before it could name it. Whoever writes an
/// older name into `latest` goes back. Nothing when there is none. Throws as newest_checkpoint.
std::optional<std::filesystem::path> checkpoint_to_resume(const std::filesystem::path& run);

/// A checkpoint and what is wrong with newer ones.
struct WholeCheckpoint {
  std::filesystem::path path;
  std::vector<std::string> damage;  ///< one sentence for each newer one
};

/// The newest checkpoint of a run folder that is what its manifest says, read byte for byte, all
/// ranks a share each; nothing when the folder has none. One whose files cannot be read is damaged
/// too. Collective, with the same answer on all ranks. Throws Error(kFormat) when all are damaged,
/// Error(kIo) when all are and one of them cannot be read.
std::optional<WholeCheckpoint> newest_whole_checkpoint(const std::filesystem::path& run,
                                                       const Axis& world = {});

/// All checkpoints of a run folder that were finished, oldest first.
std::vector<std::filesystem::path> list_checkpoints(const std::filesystem::path& run);

/// Compares a checkpoint with its manifest, all ranks a share each. Collective: throws
/// Error(kFormat) naming the tensor or file on the rank that found it.
void verify_checkpoint(const std::filesystem::path& folder, const Axis& world);

}  // namespace cleave
