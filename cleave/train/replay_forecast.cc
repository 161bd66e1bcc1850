#include "cleave/train/replay_forecast.h"

namespace cleave::inline train {
namespace {

/// The forecast of a rank of the world.
const RankForecast& forecast_of(const Forecast& planned, const ParallelConfig& layout,
                                size_t rank) {
  const auto dp = static_cast<size_t>(layout.dp), tp = static_cast<size_t>(layout.tp);
  const auto of_ep = static_cast<int>(rank / tp % static_cast<size_t>(layout.ep));
  const bool has_fewer = !planned.with_fewer_experts.empty() && of_ep >= planned.first_with_fewer;
  return (has_fewer ? planned.with_fewer_experts : planned.ranks).at(rank / (dp * tp));
}

}  // namespace

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
    const RankForecast& f = forecast_of(*setup.planned, setup.layout, static_cast<size_t>(r));
    RankForecastNumbers numbers{.memory = f.memory.total()};
    for (const auto& [axis, calls] : f.calls) {
      if (!calls.empty()) numbers.sent.emplace_back(axis, sum_of(calls).bytes);
    }
    replay.forecast.push_back(std::move(numbers));
  }
}

}  // namespace cleave::inline train
