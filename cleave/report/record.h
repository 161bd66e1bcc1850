#pragma once
#include <cstdint>
#include <ctime>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cleave::inline report {

/// The files of a run folder that its report is made from.
inline constexpr std::string_view kRecordName = "report.json";
inline constexpr std::string_view kMetricsName = "metrics.jsonl";

/// The folder in a run folder with the token ids of its data.
inline constexpr std::string_view kTokensName = "tokens";

/// The setting of a record that is the command line of the run's last start.
inline constexpr std::string_view kCommandSetting = "command";

/// The setting of a record that says when the run saves: "every 100 steps and at the end".
inline constexpr std::string_view kSavesSetting = "checkpoints";

/// Names with their displayed values, in display order: {"dtype", "bf16"}.
using NamesAndValues = std::vector<std::pair<std::string, std::string>>;

/// Names with sizes in bytes, in display order: {"gradients", 1048576}.
using NamesAndBytes = std::vector<std::pair<std::string, int64_t>>;

/// Names with seconds, in display order: {"saving", 1.5}.
using NamesAndSeconds = std::vector<std::pair<std::string, double>>;

/// The tensors of one rank by kind, at their peak.
struct RankMemory {
  std::string rank;       ///< "rank 0 (dp 0, tp 0)"
  NamesAndBytes bytes{};  ///< the same names in the same order for every rank
  int64_t forecast = 0;   ///< of the sum, in bytes; 0 = none
};

/// What a run's report shows in addition to its metrics. Written when the run starts, and again
/// with the measured values when it ends.
struct RunRecord {
  std::string title{};        ///< "llama-tiny on 2 ranks"
  std::string outcome{};      ///< "finished", "stopped by signal 2 after step 9"; "" = not ended
  int64_t num_steps = 0;      ///< planned
  int64_t first_step = 1;     ///< of the last start: above 1 in a resumed run
  double wall_s = 0;          ///< since the last start; 0 = not ended
  NamesAndValues settings{};  ///< {"batch size", "8"}; names are unique
  std::vector<RankMemory> memory{};
  NamesAndSeconds other_time{};     ///< since the last start, outside of steps: loading, saving
  NamesAndSeconds step_time{};      ///< of one step of rank 0, mean of a few steps
  NamesAndSeconds step_forecast{};  ///< the forecast of step_time
};

/// Writes the record into the run's folder, atomically. Throws Error(kIo).
void write_record(const std::string& run, const RunRecord& record);

/// The record of a run folder. Throws Error(kIo) if the folder is not a run or cannot be read,
/// Error(kFormat).
RunRecord read_record(const std::string& run);

/// "2026-11-23 08:41:10 UTC"
std::string utc_text(std::time_t time);

/// The name of this host; "unknown" if the system does not say.
std::string host_name();

/// The model of this host's CPU; "unknown" if the system does not say.
std::string cpu_name();

/// The commit that is checked out in the git repository that holds `folder`, 40 or 64 hexadecimal
/// digits; "" if there is no repository or no commit. Reads git's files; does not run git.
std::string git_commit(const std::filesystem::path& folder);

}  // namespace cleave::inline report
