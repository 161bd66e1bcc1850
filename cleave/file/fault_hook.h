#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace cleave {

/// System calls that change files. Each one asks the hook first.
enum class FileCall : uint8_t {
  kOpen,
  kAllocate,
  kWrite,  ///< once per kWriteChunk bytes
  kFsync,
  kClose,
  kRename,
  kFsyncFolder,
  kMakeFolder,
  kRemove,
};

/// "open", "pwrite", "fsync", ... as messages say it.
std::string_view name(FileCall call);

/// Sees a call before it is made. 0 lets it go on; an errno value makes it fail with that error
/// without being made. It may end the process. Called by several threads at once.
using FileHook = std::function<int(FileCall call, const std::string& path)>;

/// Puts `hook` in front of every file call of the process while it lives: how tests make any call
/// of a save fail. One at a time; without one the cost is a load of a pointer.
class ScopedFileHook {
 public:
  explicit ScopedFileHook(FileHook hook);
  ~ScopedFileHook();
  ScopedFileHook(const ScopedFileHook&) = delete;
  ScopedFileHook& operator=(const ScopedFileHook&) = delete;

 private:
  FileHook hook_;
};

/// What the hook says to a call: 0 or an errno value.
int ask_file_hook(FileCall call, const std::string& path);

}  // namespace cleave
