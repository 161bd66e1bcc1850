#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "cleave/file/file.h"

namespace cleave {

/// A folder that appears under its name only when everything in it is on the disk.
///
/// One rank makes it and commits it; any number of threads and processes write into its files by
/// File::open_write(writer.path() / name) in between, and sync and close what they wrote before
/// the commit. Without a commit TARGET.partial stays, because others may still be writing into it:
/// the next writer, or remove_leftovers at the next start, removes it. Throws Error(kIo).
class FolderWriter {
 public:
  /// Makes TARGET.partial, empty: what a dead writer left there is removed. A TARGET that exists
  /// is refused: checkpoints are never overwritten. The caller holds the lock on the parent.
  explicit FolderWriter(std::filesystem::path target);
  FolderWriter(const FolderWriter&) = delete;
  FolderWriter& operator=(const FolderWriter&) = delete;

  /// TARGET.partial, also for ranks that did not make it.
  static std::filesystem::path partial_path(const std::filesystem::path& target);
  [[nodiscard]] const std::filesystem::path& path() const { return partial_; }

  /// A folder inside.
  void make_folder(std::string_view name);
  /// A new file of `size` bytes that begins with `head`; the space is reserved, the file synced by
  /// those who write the rest. `name` is one component, or a folder's that was made, and one.
  void allocate_file(std::string_view name, uint64_t size, std::string_view head);
  /// A new, finished file: written, synced, closed.
  void write_file(std::string_view name, std::string_view bytes);
  /// Syncs the folders, renames to TARGET and syncs the parent.
  void commit();
  /// Removes TARGET.partial, where it can: for a writer that knows that no other is writing.
  void abandon() noexcept;

 private:
  std::filesystem::path target_, partial_;
  std::vector<std::string> folders_;
};

/// Removes what ends in ".partial" directly below `folder`: leftovers of writers that died. The
/// caller holds the lock on `folder`. Returns how many there were.
int remove_leftovers(const std::filesystem::path& folder);

/// Removes a folder so that a crash meanwhile leaves no half folder under its name: it is renamed
/// to NAME.partial first. Throws Error(kIo).
void remove_folder(const std::filesystem::path& folder);

}  // namespace cleave
