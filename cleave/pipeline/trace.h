#pragma once
#include <string>
#include <vector>

#include "cleave/mesh/axis.h"
#include "cleave/pipeline/schedule.h"

namespace cleave::inline pipeline {

/// The measured time of an action, without the wait for its input, in seconds since all ranks began
/// the run.
struct TraceEvent {
  Action action;
  double begin_s = 0;
  double end_s = 0;
  double cpu_s = 0;  ///< CPU time of the rank's thread
};

/// The events of every rank of a pipeline, in time order.
using Trace = std::vector<std::vector<TraceEvent>>;

/// Gathers the ranks' events of one run. Collective over the axis.
Trace gather_trace(const std::vector<TraceEvent>& own, const Axis& pp);

/// A trace for chrome://tracing or Perfetto: a JSON array of B and E pairs, ts in microseconds, pid
/// = pipeline rank, tid 0, names like "mb_3_ForwardStep".
std::string chrome_trace(const Trace& trace);

/// Share of the ranks' time, from the first event's begin to the last one's end, that no event
/// covers, in [0, 1].
double idle_share(const Trace& trace);

}  // namespace cleave::inline pipeline
