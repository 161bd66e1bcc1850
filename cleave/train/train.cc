#include <atomic>

#include "cleave/base/stop.h"
#include "cleave/comm/bootstrap/environment.h"
#include "cleave/mesh/job.h"
#include "cleave/mesh/mesh.h"
#include "cleave/runtime/kernel_switches.h"
#include "cleave/train/fingerprint.h"
#include "cleave/train/trainer.h"

namespace cleave::inline train {
namespace {

/// Returns the signal that stopped the run, or 0.
int train_rank(const TrainSetup& setup, World& world, const Axis& everyone) {
  if (!world.ranks_are_threads()) check_consistent(fingerprint_of(setup), everyone);
  return Trainer(setup, world).run();
}

Axis axis_of_all(World& world) {
  return Mesh::build(world, {{"all", world.size()}})["all"];
}

}  // namespace
}  // namespace cleave::inline train

void cleave_train(const cleave::TrainOptions& options) {
  using namespace cleave;  // NOLINT(google-build-using-namespace)
  set_plain_kernels(options.plain_kernels);
  const StopSignal stop;
  JobOptions job{.num_ranks = launched_world_size(),
                 .threads_per_rank = options.threads_per_rank,
                 .ranks = {.timeout_s = options.timeout_s,
                           .flight_log_folder = options.out,
                           .transport = options.transport},
                 .device = options.device};
  std::atomic<int> signal{0};
  if (is_restart()) {
    // Ranks start first: together they read the checkpoint to resume from, each rank a share.
    run_job(job, [&](World& world) {
      const Axis everyone = axis_of_all(world);
      const auto whole = newest_intact_checkpoint(options.out, everyone);
      try {
        const TrainSetup setup = make_setup(options, world.size(), whole);
        signal = train_rank(setup, world, everyone);
      } catch (const Stopped& stopped) {  // while data is tokenized, on every rank
        signal = stopped.signal;
      }
    });
  } else {
    const TrainSetup setup = make_setup(options, launched_world_size());
    job.num_ranks = setup.layout.num_ranks();
    run_job(job, [&](World& world) { signal = train_rank(setup, world, axis_of_all(world)); });
  }
  if (signal != 0) throw Stopped{signal};
}
