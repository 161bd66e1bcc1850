#include "cleave/planner/machine.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include <ATen/ATen.h>

#include "cleave/base/clock.h"
#include "cleave/kernels/cpu/gemm.h"

namespace cleave::inline planner {
namespace {

/// Waits until `t` is computed: calls for a device return before that.
void wait_for(const Tensor& t) {
  if (!t.is_cpu()) (void)t.flatten()[0].item();
}

/// The shortest of `runs` runs after a first one. On a busy machine many are needed: most
/// collectives wait until the other ranks get a core.
double shortest_s(int runs, const std::function<Tensor()>& work) {
  wait_for(work());
  double best = 1e30;
  for (int i = 0; i < runs; ++i) {
    const double start = monotonic_s();
    wait_for(work());
    best = std::min(best, monotonic_s() - start);
  }
  return best;
}

}  // namespace

Machine measure_machine(const Axis& everyone, at::ScalarType type, at::Device device) {
  const at::NoGradGuard no_grad;
  const int64_t size = device.is_cpu() ? 768 : 8192;  // large enough to keep it busy
  const Tensor a = at::ones({size, size}, at::device(device).dtype(type));
  const double product_s = shortest_s(4, [&] { return affine(a, a, std::nullopt); });
  const double flops = 2 * std::pow(static_cast<double>(size), 3) / product_s;
  Machine machine;
  machine.flops =
      everyone.all_reduce(at::scalar_tensor(flops, at::kDouble), "measured speed").item<double>();
  if (everyone.size() == 1) return machine;
  const Tensor large = at::ones({1 << 18}, device);
  const Tensor small = at::ones({1}, device);
  const double large_s =
      shortest_s(16, [&] { return everyone.all_reduce(large, "measured bytes"); });
  machine.call_s = shortest_s(64, [&] { return everyone.all_reduce(small, "measured call"); });
  const double sent =
      2.0 * static_cast<double>(large.nbytes()) * (everyone.size() - 1) / everyone.size();
  machine.bytes_per_s = sent / std::max(large_s - machine.call_s, 1e-9);
  return machine;
}

StepTime step_time(const Forecast& forecast, const ParallelConfig& layout, const Machine& machine) {
  const double again = layout.recompute == RecomputeKind::kFull ? 4.0 / 3 : 1.0;
  StepTime time{.compute_s = forecast.flops * again / machine.flops / (1 - forecast.idle_share)};
  for (const RankForecast& r : forecast.ranks) {
    double seconds = 0;
    for (const DryTraffic& traffic : {r.tp, r.dp, r.pp}) {
      seconds += static_cast<double>(traffic.num_calls) * machine.call_s;
      if (machine.bytes_per_s > 0)
        seconds += static_cast<double>(traffic.bytes) / machine.bytes_per_s;
    }
    time.comm_s = std::max(time.comm_s, seconds);
  }
  return time;
}

}  // namespace cleave::inline planner
