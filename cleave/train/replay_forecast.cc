#include "cleave/train/replay_forecast.h"

namespace cleave::inline train {

void add_forecast(const TrainSetup& setup, const Machine& machine, int num_ranks, Replay& replay) {
  if (!setup.planned) return;
  const StepTime time = step_time(*setup.planned, setup.layout, machine);
  replay.forecast_time = {
      {"matrix products", time.of(TimeKind::kProducts)},
      {"attention", time.of(TimeKind::kAttention)},
      {"memory-bound", time.of(TimeKind::kOptimizer) + time.of(TimeKind::kOther)},
      {"exposed communication", time.of(TimeKind::kCollectives) - time.waiting},
      {"bubble and waiting", time.waiting}};
  for (int r = 0; r < num_ranks; ++r) {
    const RankForecast& f = setup.planned->of_rank(setup.layout, r);
    RankForecastNumbers numbers{.memory = f.memory.total()};
    for (const auto& [axis, calls] : f.calls) {
      if (!calls.empty()) numbers.sent.emplace_back(axis, sum_of(calls).bytes);
    }
    replay.forecast.push_back(std::move(numbers));
  }
}

}  // namespace cleave::inline train
