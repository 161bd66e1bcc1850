#pragma once
#include <cmath>
#include <cstdint>
#include <functional>
#include <string>

#include "cleave/base/clock.h"

namespace cleave {

struct ProgressOptions {
  int64_t total = 0;                            ///< steps in all, > 0
  int64_t done = 0;                             ///< steps done before this run, for a resumed one
  std::string unit = "step";                    ///< what is counted
  double line_every_s = 10;                     ///< where stdout is not a terminal
  double draw_every_s = 0.1;                    ///< where it is one
  std::function<double()> clock = monotonic_s;  ///< seconds
};

/// What a progress line shows beside the count; NaN is left out. What was measured on other data
/// stays shown until it is measured again.
struct ProgressReading {
  double loss = NAN;
  double eval_loss = NAN;
  double eval_accuracy = NAN;  ///< share that is right
  double tokens_per_s = NAN;
};

/// How far the work is, on stdout: on a terminal one live line at the bottom, redrawn at most ten
/// times a second and cut to the terminal's width; else a plain line every ten seconds. For one
/// thread; log lines of others stay above the live line.
class Progress {
 public:
  explicit Progress(ProgressOptions options);
  ~Progress();  ///< takes the live line away
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// `done` steps of the total are finished.
  void update(int64_t done, const ProgressReading& reading = {});

  /// Leaves one plain line with the last count and the time taken. Further calls do nothing.
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

/// "1.5ms", "42ms", "4.2s", "1m 05s", "2h 03m".
std::string duration_text(double seconds);

/// "512", "12.3k", "4.56M".
std::string count_text(double count);

}  // namespace cleave
