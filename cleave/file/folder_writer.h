#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "cleave/file/file.h"

namespace cleave::inline file {

/// Writes a folder atomically: it gets its name TARGET once everything in it is on disk.
///
/// One rank creates and commits it. In between, any number of threads and processes write into its
/// files through File::open_write(writer.path() / name); they must sync and close their files
/// before the commit. Without a commit TARGET.partial stays, because others may still write into
/// it; the next writer or the next remove_leftovers() removes it. Throws Error(kIo).
class FolderWriter {
 public:
  /// Creates an empty TARGET.partial and removes one that a dead writer left. Refuses an existing
  /// TARGET, because checkpoints are never overwritten. The caller holds the lock on the parent.
  explicit FolderWriter(std::filesystem::path target);
  FolderWriter(const FolderWriter&) = delete;
  FolderWriter& operator=(const FolderWriter&) = delete;

  /// TARGET.partial; static for the ranks that did not create it.
  static std::filesystem::path partial_path(const std::filesystem::path& target);
  [[nodiscard]] const std::filesystem::path& path() const { return partial_; }

  /// Creates a folder inside.
  void make_folder(std::string_view name);
  /// Creates a file of `size` bytes that begins with `head`, and reserves its disk space. The
  /// writers of the rest must sync it. `name` is NAME, or FOLDER/NAME after make_folder(FOLDER).
  void allocate_file(std::string_view name, uint64_t size, std::string_view head);
  /// Creates, writes, syncs and closes a file.
  void write_file(std::string_view name, std::string_view bytes);
  /// Syncs the folders, renames to TARGET and syncs the parent.
  void commit();
  /// Removes TARGET.partial if possible. No other rank may be writing.
  void abandon() noexcept;

 private:
  std::filesystem::path target_, partial_;
  std::vector<std::string> folders_;
};

/// Removes the partial checkpoints and the partial `latest` that dead writers left in a run's
/// folder; other names, such as a user's data.partial, stay. The caller holds the lock on `folder`.
/// Returns how many there were.
int remove_leftovers(const std::filesystem::path& folder);

/// Removes a folder. It is renamed to NAME.partial first, so that a crash leaves no partial folder
/// under its name. Throws Error(kIo).
void remove_folder(const std::filesystem::path& folder);

}  // namespace cleave::inline file
