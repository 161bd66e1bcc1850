#pragma once
#include <chrono>

namespace cleave {

/// `timeout` and shells send one signal twice, to a program and to its process group: what comes
/// again so soon is the same.
inline constexpr std::chrono::milliseconds kSameSignal{200};

/// Thrown when the work ended early because a signal asked for it, after everything worth saving
/// was saved. The program exits with 128 + signal.
struct Stopped {
  int signal = 0;  ///< SIGINT or SIGTERM
};

/// While one exists, SIGINT and SIGTERM only ask: the work polls pending() between steps, saves and
/// throws Stopped. The same signal a second time, later than kSameSignal, ends the process at once
/// with 128 + signal (a terminal's SIGINT and a launcher's SIGTERM about the same Ctrl-C therefore
/// count as one). One at a time in a process.
class StopSignal {
 public:
  StopSignal();
  ~StopSignal();  ///< puts the handlers back that were there before
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  /// The first signal that arrived while one exists; 0 when none has. Any thread may ask, at the
  /// cost of one load.
  [[nodiscard]] static int pending();
};

}  // namespace cleave
