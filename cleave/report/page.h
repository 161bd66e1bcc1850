#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cleave/report/metrics.h"
#include "cleave/report/record.h"

namespace cleave::inline report {

/// A curve as a page draws it. A bucket is a run of consecutive values; a curve of few values has
/// one per bucket.
struct Curve {
  std::vector<double> mean;  ///< of the finite values of each bucket; NaN if there are none
  std::vector<double> low;   ///< the smallest of them
  std::vector<double> high;  ///< the largest of them
};

/// Where each of at most `most` buckets of `total` values begins, then `total`. The sizes of
/// buckets differ by at most one.
std::vector<size_t> buckets(size_t total, size_t most);

/// The curve of `values` over buckets that begin at `begins`, as buckets() returns.
Curve decimated(std::span<const double> values, std::span<const size_t> begins);

/// The file of a run folder that holds its report.
inline constexpr std::string_view kPageName = "report.html";

/// A finished checkpoint of a run.
struct ReportCheckpoint {
  std::string name;  ///< of its folder
  int64_t bytes = 0;
};

/// A run as its report shows it.
struct ReportRun {
  std::string name{};  ///< its folder, as given
  RunRecord record{};
  std::vector<StepMetrics> metrics{};
  std::string written{};                        ///< when its last step was written
  std::vector<ReportCheckpoint> checkpoints{};  ///< oldest first
};

/// Reads a run folder; the run may be in progress. Throws Error(kIo) if it is not a run,
/// Error(kFormat) naming file and line.
ReportRun read_run(const std::string& folder);

/// The report of one run, or a comparison of several, as a self-contained HTML page. All texts are
/// escaped. The charts of more steps than they have room for show the mean, minimum and maximum of
/// buckets of steps.
std::string report_page(const std::vector<ReportRun>& runs);

/// Reads the run folders and writes their page to `path`, atomically. In a comparison, names leave
/// out the folder that holds all runs. Throws as read_run does, and Error(kIo).
void write_report(const std::vector<std::string>& folders, const std::string& path);

}  // namespace cleave::inline report
