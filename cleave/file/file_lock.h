#pragma once
#include <filesystem>
#include <utility>

#include "cleave/file/file.h"

namespace cleave::inline file {

/// Exclusive lock for writing into a folder: flock on FOLDER/.lock, held until destruction. The
/// kernel releases it when the process dies. The file contains pid and host of the holder and is
/// removed with the lock.
class FileLock {
 public:
  /// Throws Error(kIo) immediately, with pid and host of the holder, if the lock is taken.
  explicit FileLock(const std::filesystem::path& folder);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  explicit FileLock(File locked) : file_(std::move(locked)) {}
  File file_;
};

}  // namespace cleave::inline file
