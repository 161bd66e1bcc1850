#pragma once
#include <string>

#include "cleave/mesh/axis.h"
#include "cleave/planner/forecast.h"
#include "cleave/planner/work_speed.h"
#include "cleave/runtime/kernel_switches.h"

namespace cleave::inline planner {

/// The measured speed of a machine's ranks.
struct Machine {
  double flops = 0;        ///< of matrix products per second, all cores
  double bytes_per_s = 0;  ///< sent by a rank in collectives of activations, which caches hold
  double bucket_bytes_per_s = 0;  ///< sent by a rank in sums of gradients, which they do not hold
  double call_s = 0;              ///< seconds of a tiny collective
  /// The CPUs of all hosts, which the ranks share; 0: each rank has a device of its own.
  int num_cpus = 0;
  /// The speed of a rank's own work. On devices other than the CPU, only products and attention
  /// have a time, computed from their flops.
  WorkSpeed rank{};
};

/// What the ranks are to be measured for.
struct MeasuredRun {
  OpWork work{};           ///< the sizes that matter
  int64_t rank_bytes = 0;  ///< memory of a rank
};

/// Measures on all ranks at the same time: large matrix products of `type` and collectives, for
/// about 0.2 seconds, with tensors on `device`; on the CPU also what `run` needs (measure_work).
/// Collective, with the same `run` on all.
Machine measure_machine(const Axis& everyone, at::ScalarType type, at::Device device,
                        const MeasuredRun& run);

/// Bytes of a bucket of gradients if ranks sum `bytes_per_s` of them: what they sum in 20 ms, at
/// least 256 KiB, at most the default of ParallelConfig. Smaller buckets start earlier in backward
/// and leave less to send after it; each one waits for a few messages.
int64_t bucket_bytes_at(double bytes_per_s);

/// The same from a measurement on all ranks at the same time: three sums of 512 KiB over `dp`. The
/// slowest rank counts. Collective over both axes, of which `everyone` has all ranks.
int64_t measure_bucket_bytes(const Axis& dp, const Axis& everyone);

/// Seconds of a step of rank 0.
struct StepTime {
  /// By TimeKind. Collectives are the messages, as if none overlapped with compute, and the wait
  /// for other ranks.
  KindSeconds kinds{};
  double waiting = 0;  ///< of the collectives, for other ranks: the pipeline's bubble, a shared CPU
  [[nodiscard]] double total() const;
  [[nodiscard]] double of(TimeKind kind) const { return kinds.at(static_cast<size_t>(kind)); }
};

/// "matrix products 200ms, other 30ms": the kinds that take time.
std::string kinds_text(const StepTime& time);

/// From a forecast and a machine: every stage's own work in the order of the pipeline's schedule,
/// then the gradient sync and the optimizer of the slowest rank. Ranks that share fewer CPUs take
/// at least their CPU time divided by the CPUs.
StepTime step_time(const Forecast& forecast, const ParallelConfig& layout, const Machine& machine);

/// Applies a --gemm flag, mkl | onednn | auto, with set_gemm(), the same on all ranks. For auto,
/// rank 0 times both once per CPU model and libtorch version and caches the faster in a file, so
/// that runs on one machine agree. Collective over `everyone`, the axis of all ranks. Throws
/// Error(kUsage) for another flag.
void choose_gemm(const std::string& flag, const Axis& everyone);

/// Times both libraries for a few milliseconds on a typical layer's matrix and returns the faster.
Gemm faster_gemm();

}  // namespace cleave::inline planner
