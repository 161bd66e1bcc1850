#include "cleave/comm/bootstrap/rendezvous_dir.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>
#include <xxhash.h>

#include "cleave/base/error.h"

namespace cleave::inline comm {
namespace {

std::string folder_of(const Environment& environment) {
  // Under mpirun and srun the ranks of one host share a parent process. Its pid identifies a job
  // that has neither a port nor an id.
  std::string id =
      str(environment.master_addr, ":", environment.master_port, ":", environment.job_id);
  if (environment.master_port == 0 && environment.job_id.empty()) id = str("parent:", getppid());
  const uint64_t hash = XXH3_64bits(id.data(), id.size());
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  const bool has_runtime =
      runtime != nullptr && runtime[0] == '/' && access(runtime, W_OK | X_OK) == 0;
  return str(has_runtime ? runtime : "/tmp", "/cleave-", geteuid(), "-", std::hex, hash);
}

}  // namespace

Descriptor::~Descriptor() {
  if (fd_ >= 0) close(fd_);
}

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  if (fd_ >= 0 && this != &other) close(fd_);
  fd_ = other.release();
  return *this;
}

int Descriptor::release() {
  return std::exchange(fd_, -1);
}

bool is_same_user(int socket) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid();
}

RendezvousDir::RendezvousDir(const Environment& environment)
    : folder_(folder_of(environment)), socket_(folder_ + "/socket") {
  CLEAVE_CHECK(socket_.size() < sizeof(sockaddr_un::sun_path), Code::kIo, socket_,
               " is too long for a socket; set XDG_RUNTIME_DIR to a shorter path");
}

RendezvousDir::~RendezvousDir() {
  if (!is_locked_) return;
  unlink(socket_.c_str());
  rmdir(folder_.c_str());
}

void RendezvousDir::open_folder() {
  const bool exists = mkdir(folder_.c_str(), 0700) == 0 || errno == EEXIST;
  CLEAVE_CHECK(exists, Code::kIo, folder_, ": mkdir: ", std::strerror(errno));
  lock_ = Descriptor(open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  // Rank 0 of an earlier job with this name may have removed it just now.
  if (!lock_.is_open() && errno == ENOENT) return;
  CLEAVE_CHECK(lock_.is_open(), Code::kIo, folder_, ": ", std::strerror(errno),
               "; remove it, or choose another MASTER_PORT");
  struct stat info {};
  const bool is_known = fstat(lock_.get(), &info) == 0;
  CLEAVE_CHECK(is_known && info.st_uid == geteuid() && (info.st_mode & 077) == 0, Code::kIo,
               folder_, " belongs to user ", info.st_uid, " with mode ", std::oct,
               info.st_mode & 0777,
               "; expected a folder of this user with mode 700; choose another MASTER_PORT");
}

sockaddr_un RendezvousDir::address() const {
  sockaddr_un result{};
  result.sun_family = AF_UNIX;
  std::memcpy(result.sun_path, socket_.c_str(), socket_.size() + 1);
  return result;
}

bool RendezvousDir::try_lock() {
  for (int tries = 0; tries < 100; ++tries) {
    if (!lock_.is_open()) {
      open_folder();
      continue;
    }
    if (flock(lock_.get(), LOCK_EX | LOCK_NB) != 0) return false;
    // The path may have been replaced: the lock counts only on the folder that it names now.
    struct stat held {
    }, named{};
    const bool is_same = fstat(lock_.get(), &held) == 0 && stat(folder_.c_str(), &named) == 0 &&
                         held.st_ino == named.st_ino && held.st_dev == named.st_dev;
    if (is_same) {
      is_locked_ = true;
      return true;
    }
    lock_ = Descriptor();
  }
  throw Error(Code::kIo, str(folder_, " vanished 100 times while it was being locked"));
}

Descriptor RendezvousDir::listen() {
  unlink(socket_.c_str());  // left by a rank 0 that was killed
  Descriptor fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const sockaddr_un name = address();
  const bool listens =
      fd.is_open() && bind(fd.get(), reinterpret_cast<const sockaddr*>(&name), sizeof(name)) == 0 &&
      chmod(socket_.c_str(), 0600) == 0 && ::listen(fd.get(), 512) == 0;
  CLEAVE_CHECK(listens, Code::kIo, socket_, " cannot be made: ", std::strerror(errno));
  return fd;
}

Descriptor RendezvousDir::try_connect() {
  Descriptor fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  const sockaddr_un name = address();
  CLEAVE_CHECK(fd.is_open(), Code::kIo, "socket: ", std::strerror(errno));
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&name), sizeof(name)) != 0) {
    return Descriptor();
  }
  CLEAVE_CHECK(is_same_user(fd.get()), Code::kIo, socket_,
               " belongs to another user; choose another MASTER_PORT");
  return fd;
}

}  // namespace cleave::inline comm
