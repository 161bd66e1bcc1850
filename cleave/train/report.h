#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cleave/train/metrics.h"

namespace cleave {

/// Rows of a two-column table, in display order.
using NamesAndValues = std::vector<std::pair<std::string, std::string>>;

/// The memory of one rank by kind, in bytes: {"parameters", 1048576}, ... Names and order are the
/// same for every rank.
struct RankMemory {
  std::string rank;  ///< "rank 0 (dp 0, tp 0)"
  std::vector<std::pair<std::string, int64_t>> bytes;
  int64_t planned = 0;  ///< forecast of the sum; 0 = none
};

/// Seconds by kind: {"saving", 1.5}.
using TimePart = std::pair<std::string, double>;

/// A finished checkpoint of the run.
struct ReportCheckpoint {
  int64_t step = 0;
  std::string path;
  int64_t bytes = 0;
};

/// The contents of a run's report. Empty parts are omitted.
struct ReportData {
  std::string title{};    ///< "llama-tiny on 2 ranks"
  std::string outcome{};  ///< "finished", "stopped by Ctrl-C after step 120"
  std::string command{};  ///< as typed
  double wall_s = 0;      ///< of this run, start to end

  std::vector<StepMetrics> metrics{};  ///< of all steps, from read_metrics()

  NamesAndValues model{};                          ///< {"hidden size", "256"}, ...
  NamesAndValues machine{};                        ///< {"CPU", "..."}, ...
  std::vector<std::vector<std::string>> layout{};  ///< a table; the first row is its header
  std::vector<RankMemory> memory{};
  std::vector<TimePart> other_time{};  ///< outside of steps: loading, eval, saving
  std::vector<TimePart> step_time{};   ///< of one step of rank 0, mean of a few steps
  std::vector<ReportCheckpoint> checkpoints{};

  std::string sample_prompt{};
  std::string sample_text{};  ///< what the model generated for the prompt
};

/// The report as a self-contained HTML page.
std::string report_html(const ReportData& data);

/// Writes the page to `path`, atomically. Throws Error(kIo).
void write_report(const std::string& path, const ReportData& data);

}  // namespace cleave
