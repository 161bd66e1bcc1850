#include "cleave/file/fault_hook.h"

#include <atomic>
#include <utility>

#include "cleave/base/error.h"

namespace cleave::inline file {
namespace {

std::atomic<const FileHook*> current_hook = nullptr;

}  // namespace

std::string_view name(FileCall call) {
  switch (call) {
    case FileCall::kOpen:
      return "open";
    case FileCall::kAllocate:
      return "fallocate";
    case FileCall::kWrite:
      return "pwrite";
    case FileCall::kFsync:
      return "fsync";
    case FileCall::kClose:
      return "close";
    case FileCall::kRename:
      return "rename";
    case FileCall::kFsyncFolder:
      return "fsync of the folder";
    case FileCall::kMakeFolder:
      return "mkdir";
    case FileCall::kRemove:
      return "remove";
    case FileCall::kLock:
      return "flock";
  }
  return "unknown call";
}

ScopedFileHook::ScopedFileHook(FileHook hook) : hook_(std::move(hook)) {
  const FileHook* none = nullptr;
  CLEAVE_CHECK(current_hook.compare_exchange_strong(none, &hook_), Code::kUsage,
               "a file hook is already set; only one can exist at a time");
}

ScopedFileHook::~ScopedFileHook() {
  current_hook = nullptr;
}

int call_file_hook(FileCall call, const std::string& path) {
  const FileHook* hook = current_hook.load(std::memory_order_acquire);
  return hook == nullptr ? 0 : (*hook)(call, path);
}

}  // namespace cleave::inline file
