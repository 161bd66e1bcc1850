#pragma once
#include <filesystem>

#include "cleave/file/file.h"

namespace cleave::inline file {

/// The lock of a folder as by FileLock, without pid and host in its file, which need space: for
/// cleaning up on a full disk.
class BareLock {
 public:
  /// Throws as FileLock, also Error(kIo) on a disk without locks.
  explicit BareLock(const std::filesystem::path& folder);
  ~BareLock();
  BareLock(const BareLock&) = delete;
  BareLock& operator=(const BareLock&) = delete;

 private:
  File file_;
};

}  // namespace cleave::inline file
