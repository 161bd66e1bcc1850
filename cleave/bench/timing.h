#pragma once
#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "cleave/bench/options.h"
#include "cleave/comm/diagnostics/flight_file.h"
#include "cleave/mesh/job.h"
#include "cleave/runtime/kernel_switches.h"
#include "cleave/torch_internals/op_clock.h"

namespace cleave::inline bench {

/// The time of rank 0 by kind and operation: of the timed steps, or of one profiled generation run.
struct Spent {
  std::array<double, kNumTimeKinds> kinds{};  ///< seconds
  std::vector<OpTime> operations;
  ProductCounts products;
};

/// What `clock` has counted so far.
Spent spent_of(const OpClock& clock);

/// The fraction of time by kind: {"matrix products": 0.8, ...}.
nlohmann::ordered_json shares_of(const Spent& spent);

/// Prints `result` as one line of JSON, or `headline` and the shares as text; both with the
/// options.operations slowest operations. `spent` is the sum over `times` runs; operations are
/// printed per run.
void print_bench(const BenchOptions& options, nlohmann::ordered_json result,
                 const std::string& headline, const Spent& spent, int64_t times);

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

}  // namespace cleave::inline bench
