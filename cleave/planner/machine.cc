#include "cleave/planner/machine.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include <ATen/ATen.h>

#include "cleave/base/clock.h"
#include "cleave/comm/bootstrap/environment.h"
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

/// A matrix of different numbers in [0, 1): GPUs multiply constants faster than data.
Tensor matrix_of(int64_t size, const at::TensorOptions& options) {
  constexpr float kGoldenRatio = 0.61803399F;
  const Tensor places = at::arange(size, at::device(options.device()).dtype(at::kFloat));
  const Tensor row = places.mul(kGoldenRatio).frac_();
  return row.unsqueeze(1).add(row.unsqueeze(0), /*alpha=*/31).frac_().to(options);
}

/// Multiplications and additions per second of a product large enough to keep the device busy.
double measured_flops(const at::TensorOptions& options) {
  constexpr double kLongEnoughS = 0.01;
  constexpr int64_t kLargest = 8192;
  for (int64_t size = options.device().is_cpu() ? 768 : 512;; size *= 2) {
    const Tensor a = matrix_of(size, options);
    const double product_s = shortest_s(4, [&] { return affine(a, a, std::nullopt); });
    const bool is_enough =
        options.device().is_cpu() || product_s >= kLongEnoughS || size >= kLargest;
    if (is_enough) return 2 * std::pow(static_cast<double>(size), 3) / product_s;
  }
}

/// The CPUs of all hosts of `everyone`: each rank adds its share of its host's.
int cpus_of(const Axis& everyone) {
  const auto launched = read_environment();
  // The rank threads of one process are not the ranks of its launcher.
  const bool is_one_each = launched && launched->world_size == everyone.size();
  const int num_here = is_one_each ? launched->local_world_size : everyone.size();
  const double share = static_cast<double>(cpus_here()) / num_here;
  const Tensor sum = everyone.all_reduce(at::scalar_tensor(share, at::kDouble), "CPUs");
  return static_cast<int>(std::lround(sum.item<double>()));
}

}  // namespace

Machine measure_machine(const Axis& everyone, at::ScalarType type, at::Device device,
                        const MeasuredRun& run) {
  const at::NoGradGuard no_grad;
  const double flops = measured_flops(at::device(device).dtype(type));
  Machine machine;
  machine.flops =
      everyone.all_reduce(at::scalar_tensor(flops, at::kDouble), "measured speed").item<double>();
  const double of_rank = machine.flops / everyone.size();
  machine.rank.flops = of_rank;
  if (device.is_cpu()) {
    machine.num_cpus = cpus_of(everyone);
    machine.rank = measure_work(everyone, run.work, of_rank, run.rank_bytes);
  }
  if (everyone.size() == 1) return machine;
  const Tensor small = at::ones({1}, device);
  machine.call_s = shortest_s(64, [&] { return everyone.all_reduce(small, "measured call"); });
  const auto bytes_per_s = [&](int64_t bytes, int runs) {
    const Tensor large = at::ones({bytes / static_cast<int64_t>(sizeof(float))}, device);
    const double large_s =
        shortest_s(runs, [&] { return everyone.all_reduce(large, "measured bytes"); });
    const double sent = 2.0 * static_cast<double>(bytes) * (everyone.size() - 1) / everyone.size();
    return sent / std::max(large_s - machine.call_s, 1e-9);
  };
  machine.bytes_per_s = bytes_per_s(int64_t{1} << 20, 16);
  machine.bucket_bytes_per_s = bytes_per_s(int64_t{1} << 24, 3);
  return machine;
}

int64_t bucket_bytes_at(double bytes_per_s) {
  constexpr double kBucketS = 0.02;
  constexpr double kLeast = 256 << 10;
  const auto most = static_cast<double>(ParallelConfig{}.bucket_bytes);
  return static_cast<int64_t>(std::clamp(bytes_per_s * kBucketS, kLeast, most));
}

int64_t measure_bucket_bytes(const Axis& dp, const Axis& everyone) {
  const at::NoGradGuard no_grad;
  const Tensor probe = at::ones({1 << 17});
  const double own_s = shortest_s(2, [&] { return dp.all_reduce(probe, "measured bytes"); });
  const Tensor slowest =
      everyone.all_reduce(at::scalar_tensor(own_s, at::kDouble), "measured bytes", ReduceOp::kMax);
  return bucket_bytes_at(static_cast<double>(probe.nbytes()) / slowest.item<double>());
}

}  // namespace cleave::inline planner
