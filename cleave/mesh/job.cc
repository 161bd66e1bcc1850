#include "cleave/mesh/job.h"

#include <cstdlib>

#include <ATen/Parallel.h>

#include "cleave/comm/bootstrap/environment.h"
#include "cleave/comm/bootstrap/rank_process.h"
#include "cleave/comm/launch/failure.h"
#include "cleave/mesh/cuda.h"
#include "cleave/mesh/gpus.h"
#include "cleave/runtime/cpu_binding.h"
#include "cleave/torch_internals/memory_cache.h"

namespace cleave::inline mesh {
namespace {

/// libtorch applies a per-thread number only after get_num_threads() was called in that thread.
void set_num_threads(int num_threads) {
  at::get_num_threads();
  at::set_num_threads(num_threads);
}

/// The GPU of this process: the host's ranks get one each, in rank order, or share them.
int own_gpu(const std::optional<Environment>& environment, int num_ranks, int num_gpus) {
  CLEAVE_CHECK(
      environment || num_ranks == 1, Code::kUsage,
      "--device cuda: each rank on a GPU needs its own process; start the ranks with cleave "
      "launch -n ",
      num_ranks, " -- PROGRAM, or another launcher");
  if (!environment || environment->local_world_size == 1) return 0;
  if (shares_gpus()) return environment->local_rank % num_gpus;
  // A scheduler may make only its own GPU visible to each rank; check_own_gpus() finds out if not.
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");  // NOLINT(concurrency-mt-unsafe)
  if (num_gpus == 1 && visible != nullptr) return 0;
  cleave_require_gpus(environment->local_world_size);
  return environment->local_rank;
}

}  // namespace

int launched_world_size() {
  const auto environment = read_environment();
  return environment ? environment->world_size : 0;
}

void run_job(const JobOptions& options, const std::function<void(World&)>& body) {
  report_uncaught_exceptions();
  use_memory_cache();
  const auto environment = read_environment();
  const bool has_gpu = !device_of(options.device).is_cpu();
  const int gpu = has_gpu ? own_gpu(environment, options.num_ranks, cuda().num_gpus()) : 0;
  const auto with_threads = [&](World& world) {
    // First, so that the kernel threads of this rank inherit its binding.
    const CpuBinding binding(world, options.threads_per_rank);
    set_num_threads(binding.num_threads());
    if (has_gpu) {
      world.use_device(cuda().take(gpu, options.ranks.timeout_s));
      if (!shares_gpus()) check_own_gpus(world, cuda().uuid(gpu));
    }
    body(world);
  };
  if (!environment) {
    run_ranks(options.num_ranks, with_threads, options.ranks);
    return;
  }
  CLEAVE_CHECK(environment->world_size == options.num_ranks, Code::kShape, "the layout needs ",
               options.num_ranks, " ranks; the launcher started ", environment->world_size);
  try {
    run_as_rank(*environment, with_threads, options.ranks);
  } catch (...) {
    throw;  // the catch unwinds run_as_rank, so the rank leaves its job even if nobody catches it
  }
}

void run_job(int num_ranks, const std::function<void(World&)>& body) {
  const int launched = launched_world_size();
  JobOptions options;
  options.num_ranks = launched > 0 ? launched : num_ranks;
  run_job(options, body);
}

}  // namespace cleave::inline mesh
