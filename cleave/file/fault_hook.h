#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace cleave::inline file {

/// System calls that change files. Each one calls the hook first.
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
  kLock,
};

/// The name of a call in messages: "open", "pwrite", "fsync", ...
std::string_view name(FileCall call);

/// Runs before each call. 0 lets the call proceed; an errno value makes it fail with that error
/// without being made. The hook may end the process. Several threads may call it at the same time.
using FileHook = std::function<int(FileCall call, const std::string& path)>;

/// Installs `hook` for all file calls of the process during its lifetime, so that tests can make
/// any call of a save fail. One at a time. Without a hook, a call costs one pointer load.
class ScopedFileHook {
 public:
  explicit ScopedFileHook(FileHook hook);
  ~ScopedFileHook();
  ScopedFileHook(const ScopedFileHook&) = delete;
  ScopedFileHook& operator=(const ScopedFileHook&) = delete;

 private:
  FileHook hook_;
};

/// Calls the installed hook: 0 or an errno value; 0 without a hook.
int call_file_hook(FileCall call, const std::string& path);

}  // namespace cleave::inline file
