#pragma once
#include <optional>
#include <string>
#include <sys/types.h>
#include <vector>

namespace cleave {

/// What a child process runs.
struct ChildOptions {
  std::vector<std::string> command;      ///< program (looked up in PATH) and its arguments
  std::vector<std::string> environment;  ///< NAME=value, over those of this process
  int inherited_fd = -1;                 ///< stays open in the child, under the same number
  bool keeps_stdin = true;               ///< else it reads /dev/null
  double start_limit_s = 30;             ///< until the program has begun
};

/// A direct child of this process. It dies with SIGKILL when the thread that started it ends, has a
/// process group of its own, and default signals.
class ChildProcess {
 public:
  /// Starts it. Throws Error(kUsage) when the program cannot be executed, Error(kMemory) when there
  /// is no room for a process, Error(kTimeout) when it has not begun at the limit: somebody stopped
  /// it.
  explicit ChildProcess(const ChildOptions& options);
  /// Kills and reaps a child that still runs.
  ~ChildProcess();
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&&) = delete;

  [[nodiscard]] pid_t pid() const { return pid_; }
  /// Readable once the child has ended.
  [[nodiscard]] int pidfd() const { return pidfd_; }
  /// Its exit code, or 128 + n after signal n; nothing while it runs. Reaps it.
  std::optional<int> poll_exit();
  /// The signal that ended it, 0 when it was none.
  [[nodiscard]] int end_signal() const { return end_signal_; }
  void send(int signal) const;

 private:
  pid_t pid_ = -1;
  int pidfd_ = -1;
  std::optional<int> exit_code_;
  int end_signal_ = 0;
};

}  // namespace cleave
