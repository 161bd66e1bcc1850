#pragma once
#include <cmath>
#include <cstdint>
#include <functional>
#include <string>

#include "cleave/base/clock.h"

namespace cleave::inline base {

/// What a progress display counts, and how often it is shown.
struct ProgressOptions {
  int64_t total = 0;                            ///< total steps, > 0
  int64_t done = 0;                             ///< steps done before a resumed run
  std::string unit = "step";                    ///< what is counted
  bool may_be_live = true;                      ///< false under a launcher, see below
  double line_every_s = 10;                     ///< if stdout is not a terminal
  double draw_every_s = 0.1;                    ///< if stdout is a terminal
  std::function<double()> clock = monotonic_s;  ///< seconds
};

/// The metrics of a progress line. NaN is not shown. An evaluation result is shown until the next.
struct ProgressReading {
  double loss = NAN;
  double reward_margin = NAN;    ///< of preferences: chosen reward minus rejected reward
  double reward_accuracy = NAN;  ///< fraction of pairs whose chosen reward is larger
  double eval_loss = NAN;
  double eval_accuracy = NAN;  ///< fraction of correct predictions
  double tokens_per_s = NAN;
};

/// Progress on stdout. On a terminal: one live line at the bottom, redrawn at most ten times a
/// second, without the last figures if the terminal is too narrow for them. Otherwise, with
/// TERM=dumb or without TERM: a plain line every ten seconds. Under a launcher too, because mpirun
/// gives its ranks terminals whose output it may write into a log. For use by one thread; log lines
/// of other threads appear above the live line.
class Progress {
 public:
  explicit Progress(ProgressOptions options);
  ~Progress();  ///< removes the live line
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Reports that `done` steps of the total are finished.
  void update(int64_t done, const ProgressReading& reading = {});

  /// Prints a final plain line with the last count and the elapsed time. Further calls do nothing.
  void finish();

 private:
  [[nodiscard]] std::string count() const;
  [[nodiscard]] std::string figures() const;
  [[nodiscard]] std::string live_line(int width, double now) const;
  [[nodiscard]] std::string time_left(double now) const;

  ProgressOptions options_;
  bool is_terminal_;
  bool is_finished_ = false;
  double start_s_;
  double last_shown_s_;
  int64_t done_;
  ProgressReading reading_;
};

/// "1.5ms", "420ms", "4.2s", "1m 05s", "2h 03m".
std::string duration_text(double seconds);

/// "512", "12.3k", "4.56M", "8.03B", "1.00T".
std::string count_text(double count);

}  // namespace cleave::inline base
