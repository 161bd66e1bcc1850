#pragma once
#include <chrono>

namespace cleave::inline base {

/// `timeout` and shells send one signal twice, to a program and to its process group. A repetition
/// within this time counts as the same signal.
inline constexpr std::chrono::milliseconds kSameSignal{200};

/// What a terminal shows on Ctrl-C.
inline constexpr char kStopsAfterStep[] =
    "\ncleave: stopping after this step; press Ctrl-C again to stop immediately\n";
inline constexpr char kStopsSoon[] = "\ncleave: stopping; press Ctrl-C again to stop immediately\n";

/// Thrown when work ends early because of a signal, after the state was saved. The program then
/// exits with 128 + signal.
struct Stopped {
  int signal = 0;  ///< SIGINT, SIGTERM or SIGHUP
};

/// While an object exists, SIGINT, SIGTERM and SIGHUP only set a flag: the work polls pending()
/// between steps, saves and throws Stopped. If the same signal arrives again after kSameSignal, the
/// process exits immediately with 128 + signal. A terminal's SIGINT and the launcher's SIGTERM for
/// the same Ctrl-C are different signals, so they do not end it. Nor does a second SIGHUP: a
/// terminal that closes sends several. An object that exists beside an earlier one changes nothing.
///
/// A SIGHUP that was ignored at the start, by nohup, stays ignored.
class StopSignal {
 public:
  /// `answer` is what a terminal shows on Ctrl-C, one of the constants above.
  explicit StopSignal(const char* answer = kStopsAfterStep);
  ~StopSignal();  ///< the last one restores the previous handlers
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  /// The first signal since an object exists; 0 if none. Any thread may call it; it costs
  /// one atomic load.
  [[nodiscard]] static int pending();
};

}  // namespace cleave::inline base
