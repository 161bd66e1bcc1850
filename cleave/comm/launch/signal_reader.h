#pragma once
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

namespace cleave::inline comm {

/// Blocks SIGTERM, SIGINT and SIGHUP while it exists and reads them from a signalfd. A SIGHUP that
/// is ignored, by nohup, stays ignored: blocked signals would be read in spite of that.
class SignalReader {
 public:
  SignalReader() {
    sigset_t set;
    sigemptyset(&set);
    for (const int signal : {SIGTERM, SIGINT}) sigaddset(&set, signal);
    struct sigaction hangup {};
    sigaction(SIGHUP, nullptr, &hangup);
    if (hangup.sa_handler != SIG_IGN) sigaddset(&set, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &set, &before_);
    fd_ = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  }
  ~SignalReader() {
    close(fd_);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  SignalReader(const SignalReader&) = delete;
  SignalReader& operator=(const SignalReader&) = delete;

  [[nodiscard]] int fd() const { return fd_; }
  /// The next signal, 0 if there is none.
  [[nodiscard]] int next() const {
    signalfd_siginfo info{};
    return read(fd_, &info, sizeof(info)) == sizeof(info) ? static_cast<int>(info.ssi_signo) : 0;
  }

 private:
  sigset_t before_{};
  int fd_ = -1;
};

}  // namespace cleave::inline comm
