#pragma once
#include <filesystem>
#include <utility>

#include "cleave/file/file.h"

namespace cleave {

/// The right to write into a folder: flock on FOLDER/.lock, held until destruction or death, so a
/// killed holder never blocks the next. The file says who holds it: pid and host; it goes with the
/// lock.
class FileLock {
 public:
  /// Throws Error(kIo) at once, naming pid and host of the holder, when another one has it.
  explicit FileLock(const std::filesystem::path& folder);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  explicit FileLock(File locked) : file_(std::move(locked)) {}
  File file_;
};

}  // namespace cleave
