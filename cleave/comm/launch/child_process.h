#pragma once
#include <optional>
#include <string>
#include <sys/types.h>
#include <vector>

namespace cleave::inline comm {

/// What a child process runs.
struct ChildOptions {
  std::vector<std::string> command;      ///< program (looked up in PATH) and its arguments
  std::vector<std::string> environment;  ///< NAME=value; override those of this process
  int inherited_fd = -1;                 ///< stays open in the child, under the same number
  bool keeps_stdin = true;               ///< if false, stdin is /dev/null
  int stdin_fd = -1;                     ///< if open, becomes its stdin
  double start_limit_s = 30;             ///< longest wait for exec
};

/// A direct child of this process. It gets SIGKILL when the thread that started it ends, and has
/// its own process group and default signal handlers; a SIGHUP that is ignored stays so.
class ChildProcess {
 public:
  /// Starts the program. Throws Error(kUsage) if it cannot be executed, Error(kMemory) if no
  /// process can be created, Error(kTimeout) if the child has not called exec at the limit, because
  /// it was stopped.
  explicit ChildProcess(const ChildOptions& options);
  /// Kills and reaps the child if it still runs.
  ~ChildProcess();
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&&) = delete;

  [[nodiscard]] pid_t pid() const { return pid_; }
  /// Readable once the child has ended; -1 on kernels before Linux 5.3: see poll_timeout().
  [[nodiscard]] int pidfd() const { return pidfd_; }
  /// Its exit code, or 128 + n after signal n; nullopt while it runs. Reaps it.
  std::optional<int> poll_exit();
  /// The signal that ended it, 0 if none.
  [[nodiscard]] int end_signal() const { return end_signal_; }
  void send(int signal) const;

 private:
  pid_t pid_ = -1;
  int pidfd_ = -1;
  std::optional<int> exit_code_;
  int end_signal_ = 0;
};

/// The timeout for a poll() of pidfds, in milliseconds, -1 for none: at most 20 on kernels without
/// pidfds, where the caller has to look at its children itself. `child` is any of them.
inline int poll_timeout(int wanted, const ChildProcess& child) {
  constexpr int kPeriod = 20;
  return child.pidfd() >= 0 || (wanted >= 0 && wanted < kPeriod) ? wanted : kPeriod;
}

}  // namespace cleave::inline comm
