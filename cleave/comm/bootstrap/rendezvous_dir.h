#pragma once
#include <string>
#include <sys/un.h>

#include "cleave/comm/bootstrap/environment.h"

namespace cleave {

/// A file descriptor that is closed when it goes.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  ~Descriptor();
  Descriptor(Descriptor&& other) noexcept : fd_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept;

  [[nodiscard]] int get() const { return fd_; }
  [[nodiscard]] bool is_open() const { return fd_ >= 0; }
  /// Gives the descriptor away: the caller closes it.
  int release();

 private:
  int fd_;
};

/// Whether the process at the other end of a local socket belongs to this user.
bool is_same_user(int socket);

/// The folder and the socket where the ranks of one job on one host find each other: private to the
/// user, named after the job.
class RendezvousDir {
 public:
  explicit RendezvousDir(const Environment& environment);
  /// The host removes socket and folder.
  ~RendezvousDir();
  RendezvousDir(const RendezvousDir&) = delete;
  RendezvousDir& operator=(const RendezvousDir&) = delete;

  /// Becomes the host; false when another live process is it. Throws Error(kIo) when the folder
  /// belongs to somebody else or others may enter it.
  bool try_host();
  /// A socket that listens, mode 0600. For the host.
  Descriptor listen();
  /// A connection to the host; not open while there is none. Throws Error(kIo) when the host is
  /// somebody else's process.
  Descriptor try_connect();

  [[nodiscard]] const std::string& folder() const { return folder_; }

 private:
  void open_folder();
  [[nodiscard]] sockaddr_un address() const;

  std::string folder_, socket_;
  Descriptor lock_;  // on the folder; the kernel releases it when the host dies
  bool is_host_ = false;
};

}  // namespace cleave
