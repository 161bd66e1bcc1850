#pragma once
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cleave/file/file.h"

namespace cleave::inline report {

/// The metrics of one optimizer step. NaN (null in the file) means "unknown".
struct StepMetrics {
  int64_t step = 0;                       ///< from 1
  double loss = NAN;                      ///< mean over the labels of the global batch
  double grad_norm = NAN;                 ///< global, before clipping
  double lr = NAN;                        ///< used in this step
  int64_t tokens = 0;                     ///< since step 1, all ranks
  double tokens_per_s = NAN;              ///< of this step, all ranks
  double step_ms = NAN;                   ///< the whole step, on the slowest rank
  double comm_ms = NAN;                   ///< in collectives before the update, mean over ranks
  int64_t peak_rss_bytes = 0;             ///< resident memory of rank 0's process, peak so far
  double mfu = NAN;                       ///< share of the measured peak FLOPS, 0 to 1
  std::optional<double> eval_loss{};      ///< if the model was evaluated after the step
  std::optional<double> eval_accuracy{};  ///< of a classifier or of preferences, 0 to 1
  std::optional<double> aux_loss{};       ///< that balances experts, before its coefficient
  // Preferences, mean over the pairs of the global batch.
  std::optional<double> reward_margin{};    ///< chosen reward minus rejected reward
  std::optional<double> reward_accuracy{};  ///< pairs whose chosen reward is larger, 0 to 1
};

/// Writes a file with one JSON object per line. A line is in the file when append() returns.
class MetricsWriter {
 public:
  /// Keeps the lines of steps up to `keep_through` (the last step of the checkpoint that a run
  /// resumes from) and removes the others and an incomplete last line, atomically. Warns of blank
  /// lines in place of the last ones, as after a power failure. Throws Error(kIo), and
  /// Error(kFormat) if another line up to that step is not an object with a later step.
  explicit MetricsWriter(const std::string& path, int64_t keep_through = 0);

  /// Throws Error(kIo).
  void append(const StepMetrics& metrics);

 private:
  File file_;
  uint64_t size_ = 0;
};

/// The lines of a file that MetricsWriter wrote, in order; an incomplete last line and blank lines
/// at the end are ignored. Throws Error(kIo), Error(kFormat).
std::vector<StepMetrics> read_metrics(const std::string& path);

}  // namespace cleave::inline report
