#include "cleave/mesh/job.h"

#include <algorithm>
#include <thread>

#include <ATen/Parallel.h>

#include "cleave/comm/environment.h"
#include "cleave/comm/rank_process.h"

namespace cleave {
namespace {

int threads_of(const JobOptions& options, int ranks_here) {
  if (options.threads_per_rank > 0) return options.threads_per_rank;
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / ranks_here);
}

/// libtorch takes a thread's own number only after it was asked for once in that thread.
void set_num_threads(int num_threads) {
  at::get_num_threads();
  at::set_num_threads(num_threads);
}

}  // namespace

int launched_world_size() {
  const auto environment = read_environment();
  return environment ? environment->world_size : 0;
}

void run_job(const JobOptions& options, const std::function<void(World&)>& body) {
  const auto environment = read_environment();
  const int ranks_here = environment ? environment->local_world_size : options.num_ranks;
  const int num_threads = threads_of(options, ranks_here);
  const auto with_threads = [&](World& world) {
    set_num_threads(num_threads);
    body(world);
  };
  if (!environment) {
    run_ranks(options.num_ranks, with_threads, options.ranks);
    return;
  }
  CLEAVE_CHECK(environment->world_size == options.num_ranks, Code::kShape, "the layout needs ",
               options.num_ranks, " ranks; the launcher started ", environment->world_size);
  run_as_rank(*environment, with_threads, options.ranks);
}

}  // namespace cleave
