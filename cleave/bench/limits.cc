#include "cleave/bench/limits.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>

#include <ATen/ATen.h>

#include "cleave/base/clock.h"
#include "cleave/base/str.h"
#include "cleave/kernels/cpu/gemm.h"
#include "cleave/kernels/cpu/panels_linear.h"
#include "cleave/torch_internals/onednn.h"

namespace cleave::inline bench {
namespace {

/// The shortest of up to `runs` runs after a first one; one that lasts long runs three times.
double shortest_run_s(int runs, const std::function<void()>& work) {
  constexpr double kLong = 0.05;
  work();
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < runs && (i < 3 || best < kLong); ++i) {
    const double start = monotonic_s();
    work();
    best = std::min(best, monotonic_s() - start);
  }
  return best;
}

/// Seconds of one product by the fastest of libtorch's linear (MKL in fp32), oneDNN, the layers'
/// own and our panels.
double best_product_s(const ProductShape& shape, at::ScalarType type) {
  constexpr int kRuns = 7;
  const Tensor x = at::ones({shape.rows, shape.inner}, type);
  const Tensor weight = at::ones({shape.columns, shape.inner}, type);
  double best = shortest_run_s(kRuns, [&] { at::linear(x, weight); });
  best = std::min(best, shortest_run_s(kRuns, [&] { affine(x, weight, std::nullopt); }));
  if (type == at::kFloat) {
    best = std::min(best, shortest_run_s(kRuns, [&] { onednn_linear(x, weight, std::nullopt); }));
  }
  if (takes_panels(weight)) {
    const PanelMatrix panels = to_panels(weight);
    best = std::min(best, shortest_run_s(kRuns, [&] { panels_linear(x, panels, std::nullopt); }));
  }
  return best;
}

}  // namespace

MachineLimit measure_limit(const Axis& ranks, const ProductCounts& products, at::ScalarType type) {
  const at::NoGradGuard no_grad;
  MachineLimit limit;
  ranks.barrier("start of measuring products");
  for (const auto& [shape, count] : products) {
    limit.products_s += static_cast<double>(count) * best_product_s(shape, type);
    limit.products += 2.0 * static_cast<double>(count) * static_cast<double>(shape.rows) *
                      static_cast<double>(shape.inner) * static_cast<double>(shape.columns);
  }
  if (ranks.size() == 1) return limit;
  const Tensor number = at::ones({1});
  ranks.barrier("start of measuring collectives");
  limit.all_reduce_s =
      shortest_run_s(100, [&] { (void)ranks.all_reduce(number, "latency of collectives"); });
  return limit;
}

double memory_speed(const Axis& ranks, int64_t bytes) {
  constexpr int64_t kMostBytes = 256 << 20;
  const Tensor read = at::ones({std::min(bytes, kMostBytes) / 4}, at::kFloat);
  double best_s = std::numeric_limits<double>::infinity();
  for (int i = 0; i < 7; ++i) {
    ranks.barrier("start of reading memory");
    const double start = monotonic_s();
    at::sum(read);
    ranks.barrier("end of reading memory");
    best_s = std::min(best_s, monotonic_s() - start);
  }
  return static_cast<double>(ranks.size() * read.numel() * 4) / best_s;
}

int64_t collective_calls(const Spent& spent) {
  int64_t calls = 0;
  for (const OpTime& op : spent.operations) {
    if (time_kind_of(op.name) == TimeKind::kCollectives) calls += op.calls;
  }
  return calls;
}

std::string percent(double part, double whole) {
  return str(std::lround(part / whole * 100), " %");
}

}  // namespace cleave::inline bench
