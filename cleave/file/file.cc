#include "cleave/file/file.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <fcntl.h>
#include <optional>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>
#include <utility>

#include "cleave/base/error.h"
#include "cleave/file/fault_hook.h"

namespace cleave::inline file {
namespace {

namespace fs = std::filesystem;

/// Blocks SIGXFSZ, so that exceeding the file size limit gives EFBIG instead of ending the process.
/// Only for this thread and scope, because a library must not change the process's signal handling.
class FileSizeSignalBlocker {
 public:
  FileSizeSignalBlocker() {
    sigemptyset(&signal_);
    sigaddset(&signal_, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &signal_, &before_);
  }
  ~FileSizeSignalBlocker() {
    if (sigismember(&before_, SIGXFSZ) == 1) return;
    const timespec now{};
    while (sigtimedwait(&signal_, nullptr, &now) == SIGXFSZ) {
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  FileSizeSignalBlocker(const FileSizeSignalBlocker&) = delete;
  FileSizeSignalBlocker& operator=(const FileSizeSignalBlocker&) = delete;

 private:
  sigset_t signal_{}, before_{};
};

void check_hook(FileCall call, const std::string& path) {
  const int error = call_file_hook(call, path);
  if (error != 0) throw_io(path, name(call), error);
}

int open_retrying(int folder, const char* path, int flags, mode_t mode) {
  int fd = -1;
  do {
    fd = ::openat(folder, path, flags | O_CLOEXEC, mode);
  } while (fd < 0 && errno == EINTR);
  return fd;
}

// O_NONBLOCK: opening a pipe without a writer must not block. It does not affect regular files.
constexpr int kReadFlags = O_RDONLY | O_NONBLOCK | O_NOCTTY;

void require_regular(int fd, const std::string& path) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) throw_io(path, "fstat", errno);
  CLEAVE_CHECK(S_ISREG(status.st_mode), Code::kFormat, path, " is ",
               S_ISDIR(status.st_mode) ? "a folder" : "a device, pipe or socket",
               "; expected a regular file");
}

/// Refuses what git leaves in the place of a large file until it is fetched.
void require_content(const File& file) {
  constexpr uint64_t kFirstLine = 42;  // "version ", and the address of the format's specification
  constexpr uint64_t kLongestPointer = 1024;
  const uint64_t size = file.size();
  if (size < kFirstLine || size > kLongestPointer) return;
  std::array<char, kFirstLine> begin{};
  file.read_at(0, std::as_writable_bytes(std::span(begin)));
  const std::string_view line(begin.data(), begin.size());
  const bool is_pointer =
      line.starts_with("version http") && line.find("/git-lfs.") != std::string_view::npos;
  CLEAVE_CHECK(!is_pointer, Code::kFormat, file.path(),
               " is a pointer of Git LFS, not the file itself; fetch it with: git lfs pull");
}

/// Where a snapshot in the Hugging Face cache links to, from its own folder.
constexpr const char* kBlobs = "../../blobs";

/// The name of the file that a link of a snapshot in the Hugging Face cache leads to; nullopt for
/// any other link.
std::optional<std::string> cached_blob(const fs::path& link) {
  std::error_code ignored;  // then it is no such link
  const fs::path target = fs::read_symlink(link, ignored);
  if (target.parent_path() != kBlobs) return std::nullopt;
  return target.filename().string();
}

}  // namespace

void throw_io(const std::string& path, std::string_view call, int error_number) {
  std::string text =
      str(path, ": ", call, " failed: ", std::generic_category().message(error_number));
  if (error_number == ENOSPC || error_number == EDQUOT) text += "; free some space and try again";
  if (error_number == EFBIG) text += "; raise the file size limit (ulimit -f)";
  throw Error(Code::kIo, text);
}

File File::open_read(const fs::path& path) {
  const int fd = open_retrying(AT_FDCWD, path.c_str(), kReadFlags, 0);
  if (fd < 0) throw_io(path.string(), "open", errno);
  File file(fd, path.string());
  require_regular(fd, file.path_);
  require_content(file);
  return file;
}

File File::open_read_below(const fs::path& folder, std::string_view name) {
  CLEAVE_CHECK(is_file_name(name), Code::kFormat, folder.string(), ": file name '", name,
               "' is not allowed; expected the name of a file in this folder, not a path");
  const int folder_fd =
      open_retrying(AT_FDCWD, folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOCTTY, 0);
  if (folder_fd < 0) throw_io(folder.string(), "open", errno);
  const File folder_closer(folder_fd, folder.string());
  const std::string path = (folder / name).string();
  const int fd = open_retrying(folder_fd, std::string(name).c_str(), kReadFlags | O_NOFOLLOW, 0);
  if (fd < 0) {
    if (errno == ELOOP) {
      if (const auto blob = cached_blob(path)) return open_read_below(folder / kBlobs, *blob);
      errno = ELOOP;
    }
    CLEAVE_CHECK(errno != ELOOP, Code::kFormat, path,
                 " is a symbolic link; replace it with the file itself (cp -L)");
    throw_io(path, "open", errno);
  }
  File file(fd, path);
  require_regular(fd, path);
  require_content(file);
  return file;
}

File File::create(const fs::path& path, mode_t mode) {
  check_hook(FileCall::kOpen, path.string());
  const int fd = open_retrying(AT_FDCWD, path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOCTTY, mode);
  if (fd < 0) throw_io(path.string(), "open", errno);
  return {fd, path.string()};
}

File File::create_unnamed(const fs::path& folder) {
  std::string path = (folder / "unnamed-XXXXXX").string();
  check_hook(FileCall::kOpen, path);
  int fd = open_retrying(AT_FDCWD, folder.c_str(), O_RDWR | O_TMPFILE, 0600);
  if (fd < 0 && (errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL)) {
    // A file system without such files (NFS).
    fd = ::mkostemp(path.data(), O_CLOEXEC);
    if (fd >= 0) ::unlink(path.c_str());
  }
  if (fd < 0) throw_io(path, "open", errno);
  return File(fd, std::move(path));
}

File File::open_write(const fs::path& path) {
  check_hook(FileCall::kOpen, path.string());
  const int fd = open_retrying(AT_FDCWD, path.c_str(), O_RDWR | O_NOFOLLOW | O_NOCTTY, 0);
  if (fd < 0) throw_io(path.string(), "open", errno);
  File file(fd, path.string());
  require_regular(fd, file.path_);
  return file;
}

File::File(File&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), path_(std::move(other.path_)) {}

File& File::operator=(File&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(path_, other.path_);
  return *this;
}

File::~File() {
  if (fd_ >= 0) ::close(fd_);
}

uint64_t File::size() const {
  struct stat status {};
  if (::fstat(fd_, &status) != 0) throw_io(path_, "fstat", errno);
  return static_cast<uint64_t>(status.st_size);
}

void File::read_at(uint64_t offset, std::span<std::byte> out) const {
  const uint64_t first = offset;
  const size_t wanted = out.size();
  while (!out.empty()) {
    const ssize_t got = ::pread(fd_, out.data(), out.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw_io(path_, "pread", errno);
    CLEAVE_CHECK(got > 0, Code::kFormat, path_, ": the file ends at byte ", offset, "; expected ",
                 wanted, " bytes from byte ", first, ", the file is truncated");
    offset += static_cast<uint64_t>(got);
    out = out.subspan(static_cast<size_t>(got));
  }
}

void File::write_at(uint64_t offset, std::span<const std::byte> bytes) {
  const FileSizeSignalBlocker blocker;
  while (!bytes.empty()) {
    check_hook(FileCall::kWrite, path_);
    const auto piece = bytes.first(std::min(bytes.size(), kWriteChunk));
    const ssize_t done = ::pwrite(fd_, piece.data(), piece.size(), static_cast<off_t>(offset));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) throw_io(path_, "pwrite", errno);
    offset += static_cast<uint64_t>(done);
    bytes = bytes.subspan(static_cast<size_t>(done));
  }
}

void File::allocate(uint64_t size) {
  check_hook(FileCall::kAllocate, path_);
  if (size == 0) return;
  const FileSizeSignalBlocker blocker;
  const auto end = static_cast<off_t>(size);
  const auto error_of = [](int result) { return result == 0 ? 0 : errno; };
  int error = 0;
  do {
    error = error_of(::fallocate(fd_, 0, 0, end));
  } while (error == EINTR);
  // Disks that reserve no space, as NFS before 4.2: posix_fallocate() would write a byte into every
  // block, over the network.
  if (error == EOPNOTSUPP || error == ENOSYS) error = error_of(::ftruncate(fd_, end));
  if (error == 0) return;
  throw_io(path_, str("fallocate of ", size, " bytes"), error);
}

void File::sync() {
  check_hook(FileCall::kFsync, path_);
  if (::fsync(fd_) != 0) throw_io(path_, "fsync", errno);
}

void File::close() {
  check_hook(FileCall::kClose, path_);
  if (::close(std::exchange(fd_, -1)) != 0) throw_io(path_, "close", errno);
}

bool is_file_name(std::string_view name) {
  if (name.empty() || name.size() > 255 || name.front() == '.') return false;
  return std::all_of(name.begin(), name.end(), [](char c) {
    return static_cast<unsigned char>(c) >= 0x20 && c != 0x7f && c != '/' && c != '\\';
  });
}

std::string read_file(const fs::path& path, uint64_t max_bytes) {
  const File file = File::open_read(path);
  const uint64_t size = file.size();
  CLEAVE_CHECK(size <= max_bytes, Code::kFormat, path.string(), " has ", size,
               " bytes; expected at most ", max_bytes);
  std::string text(size, '\0');
  file.read_at(0, std::as_writable_bytes(std::span(text)));
  return text;
}

}  // namespace cleave::inline file
