#pragma once
#include <filesystem>

#include "cleave/file/file.h"

namespace cleave {

/// The right to write into a folder: flock on FOLDER/.lock, held until destruction or death, so a
/// killed holder never blocks the next. The file says who holds it: pid and host.
class FileLock {
 public:
  /// Throws Error(kIo) at once, naming pid and host of the holder, when another one has it.
  explicit FileLock(const std::filesystem::path& folder);

 private:
  File file_;
};

}  // namespace cleave
