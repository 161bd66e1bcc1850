#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cleave/comm/diagnostics/flight_log.h"

namespace cleave::inline comm {

/// A group of ranks that operations ran on.
struct FlightAxis {
  std::string name;
  std::vector<int> ranks;  ///< world ranks, ascending
};

/// The state of one rank when the log was written.
struct FlightRank {
  int rank = 0;
  int pid = 0;
  int64_t step = -1;            ///< -1 if it never reported one
  std::string state;            ///< absent, joined, left, unwound (left by an exception)
  uint64_t num_operations = 0;  ///< since it began
  std::vector<int> waits_for;   ///< world ranks; empty if it does not wait
  /// The last 256 operations, oldest first; 8 for ranks of other hosts. Groups index the axes.
  std::vector<FlightRecord> operations;
};

/// The last operations of all ranks of a job.
struct FlightLog {
  std::string why;      ///< the error message for which the file was written
  int written_by = 0;   ///< world rank
  uint64_t now_ns = 0;  ///< steady clock of the host of that rank
  std::vector<FlightAxis> axes;
  std::vector<FlightRank> ranks;  ///< by world rank
};

/// The last operations of all ranks as `rank` sees them now. Times of ranks on other hosts are 0,
/// because their clocks differ.
/// `beside` is the rank's other segment in a job on several hosts; nullptr if it has none.
FlightLog take_flight_log(const SharedSegment& segment, int rank, std::string_view why,
                          const SharedSegment* beside = nullptr);

/// Writes take_flight_log() to a new file in `folder`, which only the user can read, and returns
/// its path. Throws Error(kIo).
std::string write_flight_log(const SharedSegment& segment, int rank, std::string_view folder,
                             std::string_view why, const SharedSegment* beside = nullptr);

/// The folder for commands without a run folder: $TMPDIR, or /tmp if that is not set.
std::string temporary_flight_logs();

/// Reads a flight log file. Throws Error(kIo), Error(kFormat).
FlightLog read_flight_log(const std::string& path);

/// The ranks that block the job: others wait for them, but they do not wait. Empty in a deadlock
/// cycle.
std::vector<int> stuck_ranks(const FlightLog& log);

/// "in all_reduce 412 on axis tp at x", "after barrier 3 on axis dp at y", "before its first
/// operation", "not yet there".
std::string describe_place(const FlightLog& log, const FlightRank& rank);

}  // namespace cleave::inline comm
