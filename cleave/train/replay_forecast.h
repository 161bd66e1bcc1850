#pragma once
#include "cleave/planner/machine.h"
#include "cleave/report/replay.h"
#include "cleave/train/setup.h"

namespace cleave::inline train {

/// Sets the forecast of a step in a replay of `num_ranks` ranks, if the setup has one.
void add_forecast(const TrainSetup& setup, const Machine& machine, int num_ranks, Replay& replay);

}  // namespace cleave::inline train
