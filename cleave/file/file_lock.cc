#include "cleave/file/file_lock.h"

#include <array>
#include <cerrno>
#include <string>
#include <sys/file.h>
#include <unistd.h>

#include "cleave/base/error.h"

namespace cleave {
namespace {

namespace fs = std::filesystem;

File open_lock_file(const fs::path& path) {
  for (int attempt = 0; attempt < 2; ++attempt) {
    if (fs::exists(path)) return File::open_write(path);
    try {
      return File::create(path);
    } catch (const Error&) {
      if (!fs::exists(path)) throw;  // else another process was faster: open its file
    }
  }
  return File::open_write(path);
}

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "unknown host";
  return name.data();
}

}  // namespace

FileLock::FileLock(const fs::path& folder) : file_(open_lock_file(folder / ".lock")) {
  if (::flock(file_.fd(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) throw_io(file_.path(), "flock", errno);
    const std::string holder = read_file(file_.path(), 4096);
    throw Error(Code::kIo, str(folder.string(), " is being written by ",
                               holder.empty() ? "another process" : holder,
                               "; wait for it to end or choose another folder"));
  }
  const std::string holder = str("pid ", ::getpid(), " on ", host_name());
  if (::ftruncate(file_.fd(), 0) != 0) throw_io(file_.path(), "ftruncate", errno);
  file_.write_at(0, std::as_bytes(std::span(holder)));
}

}  // namespace cleave
