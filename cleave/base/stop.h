#pragma once
#include <chrono>

namespace cleave::inline base {

/// `timeout` and shells send one signal twice, to a program and to its process group. A repetition
/// within this time counts as the same signal.
inline constexpr std::chrono::milliseconds kSameSignal{200};

/// Thrown when work ends early because of a signal, after the state was saved. The program then
/// exits with 128 + signal.
struct Stopped {
  int signal = 0;  ///< SIGINT or SIGTERM
};

/// While an object exists, SIGINT and SIGTERM only set a flag: the work polls pending() between
/// steps, saves and throws Stopped. If the same signal arrives again after kSameSignal, the process
/// exits immediately with 128 + signal. A terminal's SIGINT and the launcher's SIGTERM for the same
/// Ctrl-C are different signals, so they do not end it. One object at a time in a process.
class StopSignal {
 public:
  StopSignal();
  ~StopSignal();  ///< restores the previous handlers
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  /// The first signal that arrived since construction; 0 if none. Any thread may call it; it costs
  /// one atomic load.
  [[nodiscard]] static int pending();
};

}  // namespace cleave::inline base
