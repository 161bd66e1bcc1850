#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cleave/train/metrics.h"

namespace cleave {

/// Rows of a table of two columns, in the order they are shown.
using NamesAndValues = std::vector<std::pair<std::string, std::string>>;

/// Where the memory of one rank went, in bytes: {"parameters", 1048576}, ... The same names in the
/// same order on every rank.
struct RankMemory {
  std::string rank;  ///< "rank 0 (dp 0, tp 0)"
  std::vector<std::pair<std::string, int64_t>> bytes;
  int64_t planned = 0;  ///< their sum as it was forecast; 0: it was not
};

/// A stretch of time, in seconds: {"saving", 1.5}.
using TimePart = std::pair<std::string, double>;

/// A finished checkpoint of the run.
struct ReportCheckpoint {
  int64_t step = 0;
  std::string path;
  int64_t bytes = 0;
};

/// Everything a run's report shows. What is empty is left out.
struct ReportData {
  std::string title{};    ///< "llama-tiny on 2 ranks"
  std::string outcome{};  ///< "finished", "stopped by Ctrl-C after step 120"
  std::string command{};  ///< as typed
  double wall_s = 0;      ///< of this run, start to end

  std::vector<StepMetrics> metrics{};  ///< of all steps, as read_metrics gives them

  NamesAndValues model{};                          ///< {"hidden size", "256"}, ...
  NamesAndValues machine{};                        ///< {"CPU", "..."}, ...
  std::vector<std::vector<std::string>> layout{};  ///< a table; the first row is its header
  std::vector<RankMemory> memory{};
  std::vector<TimePart> other_time{};  ///< beside the steps: loading, eval, saving
  std::vector<TimePart> step_time{};   ///< of a step of the first rank, by kind: the mean of some
  std::vector<ReportCheckpoint> checkpoints{};

  std::string sample_prompt{};
  std::string sample_text{};  ///< what the model made of the prompt
};

/// The report as one HTML page that needs no other file and no network.
std::string report_html(const ReportData& data);

/// Writes the page to `path`, atomically. Throws Error(kIo).
void write_report(const std::string& path, const ReportData& data);

}  // namespace cleave
