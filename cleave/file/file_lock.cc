#include "cleave/file/file_lock.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include "cleave/base/error.h"
#include "cleave/base/log.h"
#include "cleave/file/bare_lock.h"
#include "cleave/file/fault_hook.h"

namespace cleave::inline file {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxHolderBytes = 4096;  // of "pid 123 on HOST"

struct LockFile {
  File file;
  bool is_new = false;
};

/// Opens or creates the file; other processes may create or remove it at any time.
LockFile open_lock_file(const fs::path& path) {
  while (true) {
    const bool is_there = fs::exists(path);
    try {
      return {.file = is_there ? File::open_write(path) : File::create(path), .is_new = !is_there};
    } catch (const Error&) {
      if (fs::exists(path) == is_there) throw;
    }
  }
}

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "unknown host";
  return name.data();
}

/// Whether the open file still has its name; the previous holder removes the name when it ends.
bool is_current(const File& file) {
  struct stat opened {
  }, named{};
  if (::fstat(file.fd(), &opened) != 0) throw_io(file.path(), "fstat", errno);
  return ::stat(file.path().c_str(), &named) == 0 && opened.st_ino == named.st_ino &&
         opened.st_dev == named.st_dev;
}

/// The locked file; nullopt if its name was removed between opening and locking. `is_for_writing`:
/// a disk without locks is no error.
std::optional<File> try_lock(const fs::path& path, const fs::path& target, bool is_for_writing) {
  auto [file, is_new] = open_lock_file(path);
  int error = call_file_hook(FileCall::kLock, file.path());
  if (error == 0 && ::flock(file.fd(), LOCK_EX | LOCK_NB) != 0) error = errno;
  if (error == 0) {
    if (!is_current(file)) return std::nullopt;
    return std::move(file);
  }
  if (is_for_writing && lacks_locks(error)) {
    log_warning(target.string(), " is on a disk without file locks (", std::strerror(error),
                "); see to it that no other process writes there");
    return std::move(file);
  }
  if (error != EWOULDBLOCK) {
    if (is_new) ::unlink(path.c_str());
    throw_io(file.path(), name(FileCall::kLock), error);
  }
  std::string holder(std::min<uint64_t>(file.size(), kMaxHolderBytes), '\0');
  file.read_at(0, std::as_writable_bytes(std::span(holder)));
  throw Error(Code::kIo, str(target.string(), " is being written by ",
                             holder.empty() ? "another process" : holder,
                             "; wait for it to end or choose another folder"));
}

/// `target`: what the lock is for.
File lock_file(const fs::path& path, const fs::path& target, bool is_for_writing = true) {
  while (true) {
    if (auto locked = try_lock(path, target, is_for_writing)) return std::move(*locked);
  }
}

}  // namespace

bool lacks_locks(int error) {
  return error == ENOSYS || error == EOPNOTSUPP || error == ENOLCK;
}

// If a call below fails, the destructor runs, because the delegated constructor has finished.
FileLock::FileLock(const fs::path& folder) : FileLock(lock_file(folder / ".lock", folder)) {
  name_holder();
}

FileLock::FileLock(const fs::path& folder, const std::string& name)
    : FileLock(lock_file(folder / str('.', name, ".lock"), folder / name)) {
  name_holder();
}

void FileLock::name_holder() {
  const std::string holder = str("pid ", ::getpid(), " on ", host_name());
  if (::ftruncate(file_.fd(), 0) != 0) throw_io(file_.path(), "ftruncate", errno);
  file_.write_at(0, std::as_bytes(std::span(holder)));
  file_.sync();  // other hosts can read it now, also on a network disk
}

FileLock::~FileLock() {
  ::unlink(file_.path().c_str());  // while the lock is still held, so the name is this lock's
}

BareLock::BareLock(const fs::path& folder)
    : file_(lock_file(folder / ".lock", folder, /*is_for_writing=*/false)) {}

BareLock::~BareLock() {
  ::unlink(file_.path().c_str());
}

}  // namespace cleave::inline file
