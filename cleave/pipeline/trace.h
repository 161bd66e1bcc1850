#pragma once
#include <string>
#include <vector>

#include "cleave/mesh/axis.h"
#include "cleave/pipeline/schedule.h"

namespace cleave {

/// When a rank really did an action, without the waits for its input. Seconds since all ranks began
/// the run.
struct TraceEvent {
  Action action;
  double begin_s = 0;
  double end_s = 0;
  double cpu_s = 0;  ///< that the rank's thread computed meanwhile
};

/// The events of every rank of a pipeline, in the order in which they happened.
using Trace = std::vector<std::vector<TraceEvent>>;

/// Joins the ranks' events of one run. Collective over the axis.
Trace gather_trace(const std::vector<TraceEvent>& own, const Axis& pp);

/// A trace for chrome://tracing or Perfetto: a JSON array of B and E pairs, ts in microseconds, pid
/// = pipeline rank, tid 0, names like "mb_3_ForwardStep".
std::string chrome_trace(const Trace& trace);

/// Share of the ranks' time, from the first event's begin to the last one's end, in which they do
/// nothing, in [0, 1].
double idle_share(const Trace& trace);

}  // namespace cleave
