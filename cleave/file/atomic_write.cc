// Atomic replacement of a file:
//   1. Remove PATH.partial, which a dead writer may have left, and create it.
//   2. Write it, fsync it (otherwise the rename could reach the disk before the data), and close it
//      with its errors checked.
//   3. Rename it over PATH and fsync the folder.
// A failure in 1 or 2 removes PATH.partial and does not change PATH.
#include "cleave/file/atomic_write.h"

#include <cerrno>
#include <cstdio>
#include <fcntl.h>
#include <sys/statvfs.h>
#include <system_error>
#include <unistd.h>

#include "cleave/base/error.h"
#include "cleave/file/fault_hook.h"
#include "cleave/file/file.h"

namespace cleave::inline file {
namespace {

namespace fs = std::filesystem;

fs::path folder_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

/// For file systems that do not swap, as NFS. A crash in between leaves all files, but `b` under a
/// name with kPartialSuffix.
void swap_by_renames(const fs::path& a, const fs::path& b) {
  const fs::path aside = b.string() + ".old" + std::string(kPartialSuffix);
  std::error_code problem;
  if (fs::exists(b)) fs::remove_all(aside, problem);  // left by a crash
  if (problem) throw_io(aside.string(), "unlink", problem.value());
  if (std::rename(b.c_str(), aside.c_str()) != 0) throw_io(b.string(), "rename", errno);
  if (std::rename(a.c_str(), b.c_str()) != 0) {
    const int error = errno;
    if (std::rename(aside.c_str(), b.c_str()) != 0) throw_io(aside.string(), "rename", errno);
    throw_io(a.string(), "rename", error);
  }
  if (std::rename(aside.c_str(), a.c_str()) != 0) throw_io(aside.string(), "rename", errno);
}

}  // namespace

void write_atomic(const fs::path& path, std::span<const std::byte> bytes) {
  std::error_code problem;
  CLEAVE_CHECK(fs::is_directory(folder_of(path), problem), Code::kIo, folder_of(path).string(),
               ": no such folder, so that ", path.filename().string(),
               " cannot be written in it; make it first");
  const fs::path temporary = path.string() + std::string(kPartialSuffix);
  if (::unlink(temporary.c_str()) != 0 && errno != ENOENT) {
    throw_io(temporary.string(), "unlink", errno);
  }
  try {
    File file = File::create(temporary);
    file.write_at(0, bytes);
    file.sync();
    file.close();
    rename_durably(temporary, path);
  } catch (...) {
    ::unlink(temporary.c_str());  // already renamed if only the folder's fsync failed
    throw;
  }
}

void write_atomic(const fs::path& path, std::string_view text) {
  write_atomic(path, std::as_bytes(std::span(text)));
}

void sync_folder(const fs::path& folder) {
  if (const int error = call_file_hook(FileCall::kFsyncFolder, folder.string()); error != 0) {
    throw_io(folder.string(), name(FileCall::kFsyncFolder), error);
  }
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) throw_io(folder.string(), "open", errno);
  const int result = ::fsync(fd);
  const int error = errno;
  ::close(fd);
  // Some file systems cannot sync a folder and return EINVAL.
  if (result != 0 && error != EINVAL) {
    throw_io(folder.string(), name(FileCall::kFsyncFolder), error);
  }
}

void rename_durably(const fs::path& from, const fs::path& to) {
  if (const int error = call_file_hook(FileCall::kRename, to.string()); error != 0) {
    throw_io(to.string(), name(FileCall::kRename), error);
  }
  if (std::rename(from.c_str(), to.c_str()) != 0) throw_io(to.string(), "rename", errno);
  sync_folder(folder_of(to));
}

void swap_durably(const fs::path& a, const fs::path& b) {
  if (const int error = call_file_hook(FileCall::kRename, b.string()); error != 0) {
    throw_io(b.string(), name(FileCall::kRename), error);
  }
  if (::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) != 0) {
    const bool is_unknown = errno == EINVAL || errno == ENOSYS;
    if (!is_unknown) throw_io(b.string(), "renameat2 (swap)", errno);
    swap_by_renames(a, b);
  }
  sync_folder(folder_of(b));
}

uint64_t free_space(const fs::path& folder) {
  struct statvfs status {};
  if (::statvfs(folder.c_str(), &status) != 0) throw_io(folder.string(), "statvfs", errno);
  uint64_t available = 0;
  if (__builtin_mul_overflow(uint64_t{status.f_bavail}, uint64_t{status.f_frsize}, &available)) {
    return UINT64_MAX;
  }
  return available;
}

void require_free_space(const fs::path& folder, uint64_t bytes) {
  const uint64_t available = free_space(folder);
  CLEAVE_CHECK(bytes <= available, Code::kIo, folder.string(), ": ", bytes,
               " bytes are needed, the disk has ", available,
               " free; free some space or choose another folder");
}

fs::path make_folder_above(const fs::path& path) {
  const fs::path whole = fs::absolute(path);
  // "out/" is "out".
  fs::path folder = (whole.has_filename() ? whole : whole.parent_path()).parent_path();
  std::error_code code;
  fs::create_directories(folder, code);
  if (code) throw_io(folder.string(), "mkdir", code.value());
  return folder;
}

}  // namespace cleave::inline file
