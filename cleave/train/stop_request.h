#pragma once
#include <string_view>
#include <utility>

#include <ATen/ops/scalar_tensor.h>

#include "cleave/base/stop.h"
#include "cleave/mesh/axis.h"

namespace cleave::inline train {

/// A signal that asks a run to stop, as all ranks agree on it: signals arrive at the ranks at
/// different times. A rank that has seen one shares it with all.
class StopRequest {
 public:
  /// `everyone`: the axis of all ranks of the run.
  explicit StopRequest(Axis everyone) : everyone_(std::move(everyone)) {}

  /// Whether a signal has arrived at any rank. `site` names the call in errors. Collective.
  bool poll(std::string_view site) {
    const Tensor mine = at::scalar_tensor(StopSignal::pending(), at::kLong);
    const auto asked = everyone_.all_reduce(mine, site, ReduceOp::kMax).item<int64_t>();
    if (asked != 0) signal_ = static_cast<int>(asked);
    return asked != 0;
  }

  /// The signal as of the last poll(); 0: none.
  [[nodiscard]] int signal() const { return signal_; }

 private:
  Axis everyone_;
  int signal_ = 0;
};

}  // namespace cleave::inline train
