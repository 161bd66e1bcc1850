#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cleave/comm/diagnostics/flight_log.h"

namespace cleave {

/// A group of ranks that operations ran on.
struct FlightAxis {
  std::string name;
  std::vector<int> ranks;  ///< world ranks, ascending
};

/// One rank as it was when the log was written.
struct FlightRank {
  int rank = 0;
  int pid = 0;
  int64_t step = -1;            ///< -1 when it never told
  std::string state;            ///< absent, joined, left, unwound (left by an exception)
  uint64_t num_operations = 0;  ///< since it began
  std::vector<int> waits_for;   ///< world ranks; none: it waits for nobody
  /// The last ones, oldest first: 256, of another host's ranks 8; groups index the axes.
  std::vector<FlightRecord> operations;
};

/// What all ranks of a job did last.
struct FlightLog {
  std::string why;      ///< the message that the file was written for
  int written_by = 0;   ///< world rank
  uint64_t now_ns = 0;  ///< steady clock of the host of that rank
  std::vector<FlightAxis> axes;
  std::vector<FlightRank> ranks;  ///< by world rank
};

/// The last operations of all ranks as `rank` sees them now. Ranks on other hosts have other
/// clocks: their times are 0.
FlightLog take_flight_log(const SharedSegment& segment, int rank, std::string_view why);

/// Writes take_flight_log() to a new file in `folder`, readable by its user alone, and returns the
/// path. Throws Error(kIo).
std::string write_flight_log(const SharedSegment& segment, int rank, std::string_view folder,
                             std::string_view why);

/// Where commands without a folder of their own keep it: $TMPDIR, /tmp without one.
std::string temporary_flight_logs();

/// Reads such a file. Throws Error(kIo), Error(kFormat).
FlightLog read_flight_log(const std::string& path);

/// Ranks that others wait for, directly or through others, and that wait for nobody themselves:
/// who holds the job up. None when ranks wait in a circle.
std::vector<int> stuck_ranks(const FlightLog& log);

/// "in all_reduce 412 on axis tp at x", "after barrier 3 on axis dp at y", "before its first
/// operation", "not yet there".
std::string describe_place(const FlightLog& log, const FlightRank& rank);

}  // namespace cleave
