#include <atomic>

#include "cleave/base/stop.h"
#include "cleave/kernels/kernels.h"
#include "cleave/mesh/job.h"
#include "cleave/train/trainer.h"

void cleave_train(const cleave::TrainOptions& options) {
  cleave::set_plain_kernels(options.plain_kernels);
  const cleave::StopSignal stop;
  const cleave::TrainSetup setup = cleave::make_setup(options, cleave::launched_world_size());
  const cleave::JobOptions job{
      .num_ranks = setup.layout.num_ranks(),
      .threads_per_rank = options.threads_per_rank,
      .ranks = {.timeout_s = options.timeout_s, .flight_log_folder = options.out},
      .device = options.device};
  std::atomic<int> signal{0};
  cleave::run_job(job, [&](cleave::World& world) { signal = cleave::Trainer(setup, world).run(); });
  if (signal != 0) throw cleave::Stopped{signal};
}
