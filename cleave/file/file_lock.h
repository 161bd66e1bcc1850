#pragma once
#include <filesystem>
#include <string>
#include <utility>

#include "cleave/file/file.h"

namespace cleave::inline file {

/// Whether this error of flock means that the disk has no locks, as a network disk that is mounted
/// without them.
bool lacks_locks(int error);

/// Exclusive lock for writing: flock on a file, held until destruction. The kernel releases it when
/// the process dies. The file contains pid and host of the holder and is removed with the lock. On
/// a disk without locks it warns, and keeps nobody out.
class FileLock {
 public:
  /// For everything in a folder, by FOLDER/.lock. Throws Error(kIo) immediately, with pid and host
  /// of the holder, if the lock is taken.
  explicit FileLock(const std::filesystem::path& folder);
  /// The same for one file or folder in it, by FOLDER/.NAME.lock: others may be written meanwhile.
  FileLock(const std::filesystem::path& folder, const std::string& name);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  explicit FileLock(File locked) : file_(std::move(locked)) {}
  void name_holder();

  File file_;
};

}  // namespace cleave::inline file
