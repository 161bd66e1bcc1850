#pragma once
#include <string>
#include <sys/un.h>

#include "cleave/comm/bootstrap/environment.h"

namespace cleave::inline comm {

/// Owning file descriptor.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  ~Descriptor();
  Descriptor(Descriptor&& other) noexcept : fd_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept;

  [[nodiscard]] int get() const { return fd_; }
  [[nodiscard]] bool is_open() const { return fd_ >= 0; }
  /// Releases ownership: the caller closes the descriptor.
  int release();

 private:
  int fd_;
};

/// Whether the process at the other end of a local socket belongs to this user.
bool is_same_user(int socket);

/// The folder and socket over which the ranks of one job on one host rendezvous. It is private to
/// the user and named after the job.
class RendezvousDir {
 public:
  explicit RendezvousDir(const Environment& environment);
  /// Removes socket and folder if this object holds the lock.
  ~RendezvousDir();
  RendezvousDir(const RendezvousDir&) = delete;
  RendezvousDir& operator=(const RendezvousDir&) = delete;

  /// Locks the folder, for rank 0; false if another live process holds the lock. Throws Error(kIo)
  /// if the folder belongs to another user or is accessible to other users.
  bool try_lock();
  /// A listening socket with mode 0600. The caller must hold the lock.
  Descriptor listen();
  /// A connection to rank 0; not open while rank 0 does not listen. Throws Error(kIo) if the
  /// listening process belongs to another user.
  Descriptor try_connect();

  [[nodiscard]] const std::string& folder() const { return folder_; }

 private:
  void open_folder();
  [[nodiscard]] sockaddr_un address() const;

  std::string folder_, socket_;
  Descriptor lock_;  // on the folder; the kernel releases it when the process dies
  bool is_locked_ = false;
};

}  // namespace cleave::inline comm
