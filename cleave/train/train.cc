#include "cleave/base/stop.h"
#include "cleave/mesh/job.h"
#include "cleave/train/trainer.h"

void cleave_train(const cleave::TrainOptions& options) {
  using namespace cleave;  // NOLINT(google-build-using-namespace): one function outside it
  const StopSignal stop;
  const TrainSetup setup = make_setup(options, launched_world_size());
  run_job({.num_ranks = setup.num_ranks(),
           .threads_per_rank = options.threads_per_rank,
           .ranks = {.timeout_s = options.timeout_s, .flight_log_folder = options.out}},
          [&](World& world) { Trainer(setup, world).run(); });
}
