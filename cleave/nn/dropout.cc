#include "cleave/nn/dropout.h"

#include <ATen/ATen.h>

#include "cleave/base/philox.h"

namespace cleave::inline nn {
namespace {

/// Uniform random numbers for this rank's elements, in memory order.
Tensor local_uniform(const DTensor& x, uint64_t key, const Context& context) {
  if (x.local().is_meta()) return at::empty_like(x.local(), at::kFloat);  // dry run
  Tensor out = at::empty(x.local().sizes(), at::kFloat);
  float* to = out.mutable_data_ptr<float>();
  const int dim = x.placement().is_shard() ? x.placement().dim() : 0;
  const Split* split = x.placement().is_shard() ? x.placement().split().get() : nullptr;
  int64_t outer = 1;
  int64_t inner = 1;
  for (int64_t d = 0; d < x.dim(); ++d) {
    if (d < dim) outer *= x.size(d);
    if (d > dim) inner *= x.size(d);
  }
  int64_t sample = 1;
  for (int64_t d = 1; d < x.dim(); ++d) sample *= x.size(d);
  const int64_t first = context.first_sample * sample;
  const std::vector<Range> ranges =
      split ? split->ranges(x.axis().rank()) : std::vector<Range>{{0, x.size(dim)}};
  for (int64_t o = 0; o < outer; ++o) {
    for (const Range& r : ranges) {
      const auto begin = static_cast<uint64_t>(first + (o * x.size(dim) + r.begin) * inner);
      const auto count = static_cast<size_t>(r.size() * inner);
      fill_uniform(key, static_cast<uint64_t>(context.step), begin, {to, count});
      to += count;
    }
  }
  return out;
}

}  // namespace

Dropout::Dropout(double p) : p_(p) {
  CLEAVE_CHECK(p >= 0 && p < 1, Code::kUsage, "Dropout(p=", p, "); p must be in [0, 1)");
}

Tensor dropout_mask(const DTensor& x, double p, const std::string& stream, const Context& context) {
  const uint64_t key = stream_key(context.seed, "dropout " + stream);
  const Tensor keep = local_uniform(x, key, context).ge(p);
  return keep.to(x.local().options(), /*non_blocking=*/true).mul_(1 / (1 - p));
}

DTensor Dropout::forward(const DTensor& x, const Context& context) {
  if (!context.training || p_ == 0) return x;
  CLEAVE_CHECK(!x.placement().is_partial(), Code::kShape, path(),
               ": dropout of partial sums made by ", x.maker(),
               " would drop different elements on each rank; redistribute first");
  return x.with(x.local() * dropout_mask(x, p_, path(), context));
}

}  // namespace cleave::inline nn
