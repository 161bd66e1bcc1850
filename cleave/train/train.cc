#include <algorithm>
#include <atomic>

#include <ATen/ATen.h>

#include "cleave/base/log.h"
#include "cleave/base/stop.h"
#include "cleave/checkpoint/names.h"
#include "cleave/comm/bootstrap/environment.h"
#include "cleave/file/model_path.h"
#include "cleave/mesh/job.h"
#include "cleave/mesh/mesh.h"
#include "cleave/planner/other_ranks.h"
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

/// The number of ranks of each host, the same on all ranks.
std::vector<int> ranks_of_hosts(const Axis& everyone) {
  const auto place = read_environment();
  const std::vector<int64_t> mine{place ? place->local_rank : everyone.rank(),
                                  place ? place->local_world_size : everyone.size()};
  const std::vector<int64_t> two_each(static_cast<size_t>(everyone.size()), 2);
  const Tensor all =
      everyone.all_gather(at::tensor(mine, at::kLong), 0, two_each, "restart: ranks of hosts");
  std::vector<int> counts;
  for (int64_t i = 0; i < all.numel(); i += 2) {
    const bool is_first = all[i].item<int64_t>() == 0;
    if (is_first) counts.push_back(static_cast<int>(all[i + 1].item<int64_t>()));
  }
  return counts;
}

/// The tensor-parallel ranks of a checkpoint's run, 0 if there is none.
int saved_tp(const std::optional<IntactCheckpoint>& checkpoint) {
  if (!checkpoint) return 0;
  const Json state = Json::parse_file((checkpoint->path / kStateName).string());
  return state.has("tp")
             ? static_cast<int>(state.at("tp").as_int(1, static_cast<int64_t>(option::kRanks.high)))
             : 0;
}

/// The options of a restarted run. If the launcher now has another number of ranks, because hosts
/// were lost or came back, the layout changes, and rank 0 reports it.
TrainOptions fit_to_ranks(const TrainOptions& options, const Axis& everyone,
                          const std::optional<IntactCheckpoint>& checkpoint) {
  RankUse before{.layout = options,
                 .batch_size = options.batch_size,
                 .micro_batch_size = options.micro_batch_size};
  if (before.layout.tp == 0) before.layout.tp = saved_tp(checkpoint);
  if (before.layout.tp == 0) {
    before.layout.tp = std::max(1, everyone.size() / (options.dp * options.pp));
  }
  const RankUse after = on_other_ranks(before, ranks_of_hosts(everyone));
  if (after.layout.dp == options.dp && after.layout.pp == options.pp &&
      after.layout.tp == before.layout.tp) {
    return options;
  }
  if (everyone.rank() == 0) log_warning(describe_change(before, after));
  TrainOptions changed = options;
  static_cast<LayoutOptions&>(changed) = after.layout;
  changed.micro_batch_size = after.micro_batch_size;
  return changed;
}

TrainSetup read_setup(const TrainOptions& options, int world_size,
                      const std::optional<IntactCheckpoint>& whole = {}) {
  return read_from(folders_of({options.model, options.tokenizer}),
                   [&] { return make_setup(options, world_size, whole); });
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
                           .transport = options.transport,
                           .fast_sums = options.fast_sums},
                 .device = options.device};
  std::atomic<int> signal{0};
  if (is_restart()) {
    // Ranks start first: together they read the checkpoint to resume from, each rank a share.
    run_job(job, [&](World& world) {
      const Axis everyone = axis_of_all(world);
      const auto whole = newest_intact_checkpoint(options.out, everyone);
      try {
        const TrainSetup setup =
            read_setup(fit_to_ranks(options, everyone, whole), world.size(), whole);
        signal = train_rank(setup, world, everyone);
      } catch (const Stopped& stopped) {  // while data is tokenized, on every rank
        signal = stopped.signal;
      }
    });
  } else {
    const TrainSetup setup = read_setup(options, launched_world_size());
    job.num_ranks = setup.layout.num_ranks();
    run_job(job, [&](World& world) { signal = train_rank(setup, world, axis_of_all(world)); });
  }
  if (signal != 0) throw Stopped{signal};
}
