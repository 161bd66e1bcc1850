#pragma once
#include "cleave/mesh/axis.h"
#include "cleave/planner/forecast.h"

namespace cleave {

/// What a machine's ranks do together, measured.
struct Machine {
  double flops = 0;        ///< of matrix products a second, all cores
  double bytes_per_s = 0;  ///< that a rank sends in large collectives
  double call_s = 0;       ///< of a collective of next to nothing
};

/// Measures for about a fifth of a second, on all ranks at once; products of `type`, tensors on
/// `device`. Collective.
Machine measure_machine(const Axis& everyone, at::ScalarType type, at::Device device = at::kCPU);

/// Seconds of a step.
struct StepTime {
  double compute_s = 0;  ///< matrix products, the pipeline's idle time with them
  double comm_s = 0;     ///< messages, none of them hidden behind work
  [[nodiscard]] double total() const { return compute_s + comm_s; }
};

/// From a forecast and a machine: a floor, since what is no matrix product is left out.
StepTime step_time(const Forecast& forecast, const TrainLayout& layout, const Machine& machine);

}  // namespace cleave
