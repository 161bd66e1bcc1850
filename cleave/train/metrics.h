#pragma once
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cleave/file/file.h"

namespace cleave {

/// What is known after one optimizer step. NaN (null in the file) is "not known".
struct StepMetrics {
  int64_t step = 0;                       ///< 1 is the first
  double loss = NAN;                      ///< mean over the valid tokens of the global batch
  double grad_norm = NAN;                 ///< global, before clipping
  double lr = NAN;                        ///< used in this step
  int64_t tokens = 0;                     ///< trained on since step 1, all ranks
  double tokens_per_s = NAN;              ///< of this step, all ranks
  double step_ms = NAN;                   ///< the whole step, on the slowest rank
  double comm_ms = NAN;                   ///< of it, inside collectives: the mean of the ranks
  int64_t peak_rss_bytes = 0;             ///< of this process so far
  double mfu = NAN;                       ///< share of the machine's peak arithmetic, 0 to 1
  std::optional<double> eval_loss{};      ///< where the step was followed by a measurement
  std::optional<double> eval_accuracy{};  ///< of it: share of rows whose class was right, 0 to 1
};

/// Appends one JSON object a line to a file; each line is there when append() returns.
class MetricsWriter {
 public:
  /// Keeps the lines of steps up to `keep_through` (a run resumed after that step), in one atomic
  /// change of the file; a line cut by a crash goes too. Throws Error(kIo), and Error(kFormat) for
  /// a line among those that is no object with a step.
  explicit MetricsWriter(const std::string& path, int64_t keep_through = 0);

  /// Throws Error(kIo).
  void append(const StepMetrics& metrics);

 private:
  File file_;
  uint64_t size_ = 0;
};

/// All lines of a file that MetricsWriter wrote, in order; a last line without its end is left out.
/// Throws Error(kIo), Error(kFormat).
std::vector<StepMetrics> read_metrics(const std::string& path);

}  // namespace cleave
