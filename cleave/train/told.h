#pragma once
#include "cleave/mesh/alike.h"
#include "cleave/train/setup.h"

namespace cleave {

/// All that decides what a run computes and when it saves, but not where its files lie, which may
/// differ from host to host.
Told told_of(const TrainSetup& setup);

}  // namespace cleave
