#pragma once
#include <cmath>
#include <string>
#include <vector>

#include "cleave/report/metrics.h"
#include "cleave/report/record.h"
#include "cleave/report/step_events.h"

namespace cleave::inline report {

/// The files of a recorded step in a run folder.
inline constexpr std::string_view kReplayPageName = "replay.html";
inline constexpr std::string_view kReplayTraceName = "replay.json";

/// The forecast of a rank's step.
struct RankForecastNumbers {
  int64_t memory = 0;    ///< bytes of tensors at the peak
  NamesAndBytes sent{};  ///< by axis
};

/// A recorded step of all ranks, after align() and set_waiting().
struct Replay {
  std::string title{};  ///< "llama-tiny on 2 ranks, step 3"
  StepMetrics metrics{};
  std::vector<std::string> places{};  ///< of each rank: "rank 0 (dp 0, tp 0)"
  int num_cores = 0;                  ///< of rank 0's host
  std::vector<RankRecording> ranks{};
  NamesAndSeconds forecast_time{};  ///< seconds of rank 0's step by kind; empty: no forecast
  std::vector<RankForecastNumbers> forecast{};  ///< by rank; empty: none
};

/// Puts all ranks on one clock: those of a host share its clock, and the step began at the same
/// time on all hosts.
void align(std::vector<RankRecording>& ranks);

/// Sets StepEvent::wait_s of aligned recordings: the time at an event's begin in which a partner
/// had not yet called the collective (the sender, for a recv). The wait for a helper thread counts
/// as a whole, other events not at all.
void set_waiting(std::vector<RankRecording>& ranks);

/// Leaves out the shortest events, layers first, until at most `most` are left of all ranks.
void shorten(std::vector<RankRecording>& ranks, size_t most);

/// The step as Chrome's JSON for Perfetto: a process for each rank; B and E pairs; counters of
/// memory; a flow from the last partner of each collective to each other one, and from each send to
/// its recv. Times are microseconds.
std::string chrome_trace(const Replay& replay);

/// A page of its own: timeline, memory, weights and bytes of the step. At most 10 MB: it
/// leaves out the shortest events, and says how many.
std::string replay_page(const Replay& replay);

}  // namespace cleave::inline report
