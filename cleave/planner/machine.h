#pragma once
#include <string>

#include "cleave/mesh/axis.h"
#include "cleave/planner/forecast.h"
#include "cleave/runtime/kernel_switches.h"

namespace cleave::inline planner {

/// The measured speed of a machine's ranks.
struct Machine {
  double flops = 0;        ///< of matrix products per second, all cores
  double bytes_per_s = 0;  ///< sent by a rank in large collectives
  double call_s = 0;       ///< seconds of a tiny collective
};

/// Measures for about 0.2 seconds, on all ranks at the same time: matrix products of `type`,
/// tensors on `device`. Collective.
Machine measure_machine(const Axis& everyone, at::ScalarType type, at::Device device = at::kCPU);

/// Seconds of a step.
struct StepTime {
  double compute_s = 0;  ///< matrix products and the pipeline's idle time
  double comm_s = 0;     ///< messages, as if none overlapped with compute
  [[nodiscard]] double total() const { return compute_s + comm_s; }
};

/// From a forecast and a machine: a lower bound, since other work than matrix products is left out.
StepTime step_time(const Forecast& forecast, const ParallelConfig& layout, const Machine& machine);

/// Applies a --gemm flag, mkl | onednn | auto, with set_gemm(), the same on all ranks. For auto,
/// rank 0 times both once per CPU model and libtorch version and caches the faster in a file, so
/// that runs on one machine agree. Collective over `everyone`, the axis of all ranks. Throws
/// Error(kUsage) for another flag.
void choose_gemm(const std::string& flag, const Axis& everyone);

/// Times both libraries for a few milliseconds on a typical layer's matrix and returns the faster.
Gemm faster_gemm();

}  // namespace cleave::inline planner
