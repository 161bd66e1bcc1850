#include "cleave/mesh/job.h"

#include <cstdlib>

#include <ATen/Parallel.h>

#include "cleave/comm/launch/cpu_binding.h"
#include "cleave/comm/bootstrap/environment.h"
#include "cleave/comm/launch/failure.h"
#include "cleave/comm/shm/shm_world.h"
#include "cleave/comm/bootstrap/rank_process.h"
#include "cleave/mesh/cuda.h"
#include "cleave/mesh/gpus.h"
#include "cleave/mesh/memory_cache.h"

namespace cleave {
namespace {

/// libtorch takes a thread's own number only after it was asked for once in that thread.
void set_num_threads(int num_threads) {
  at::get_num_threads();
  at::set_num_threads(num_threads);
}

/// The GPU of this process: the host's ranks have one each, in order.
int own_gpu(const std::optional<Environment>& environment, int num_ranks, int num_gpus) {
  CLEAVE_CHECK(environment || num_ranks == 1, Code::kUsage,
               "--device cuda: each rank on a GPU is a process of its own; start them with cleave "
               "launch -n ",
               num_ranks, " -- PROGRAM, or another launcher");
  if (!environment || environment->local_world_size == 1) return 0;
  // A scheduler may show each rank its own GPU alone.
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
  const bool has_gpu = device_of(options.device).is_cuda();
  const int gpu = has_gpu ? own_gpu(environment, options.num_ranks, cuda().num_gpus()) : 0;
  const auto with_threads = [&](World& world) {
    // First, so that the threads of this rank's kernels start where it is.
    const CpuBinding processors(world, options.threads_per_rank);
    set_num_threads(processors.num_threads());
    if (has_gpu) {
      dynamic_cast<ShmWorld&>(world).use_device(cuda().take(gpu, options.ranks.timeout_s));
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
    throw;  // from here: where nobody catches it further out, the rank has left its job in order
  }
}

void run_job(int num_ranks, const std::function<void(World&)>& body) {
  const int launched = launched_world_size();
  run_job({.num_ranks = launched > 0 ? launched : num_ranks}, body);
}

}  // namespace cleave
