#pragma once
#include <optional>
#include <type_traits>

#include "cleave/bench/options.h"
#include "cleave/comm/diagnostics/flight_file.h"
#include "cleave/mesh/job.h"
#include "cleave/runtime/kernel_switches.h"

namespace cleave {

/// Runs `measure(World&)` on all ranks of a benchmark. Returns the result of rank 0 in its process,
/// nullopt in other processes of a launcher.
template <class Measure>
auto measured_by_rank_0(const BenchOptions& options, const Measure& measure) {
  set_plain_kernels(options.plain_kernels);
  std::optional<std::invoke_result_t<Measure, World&>> of_rank_0;
  JobOptions job;
  job.num_ranks = options.tp;
  job.threads_per_rank = options.threads_per_rank;
  job.ranks.flight_log_folder = temporary_flight_logs();
  run_job(job, [&](World& world) {
    auto measured = measure(world);
    if (world.rank() == 0) of_rank_0 = std::move(measured);
  });
  return of_rank_0;
}

}  // namespace cleave
