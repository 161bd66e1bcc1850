#include "cleave/nn/dropout.h"

#include <optional>
#include <vector>

#include <ATen/ATen.h>

#include "cleave/base/philox.h"
#include "cleave/kernels/cpu/dropout.h"
#include "cleave/kernels/device.h"
#include "cleave/runtime/kernel_switches.h"
#include "cleave/torch_internals/node.h"
#include "cleave/torch_internals/op_work.h"

namespace cleave::inline nn {
namespace {

/// The elements of a whole tensor that this rank has, and their numbers in the step's stream.
struct Held {
  std::vector<int64_t> shape;  // of the whole
  int64_t dim = 0;             // that is sharded
  std::vector<Range> ranges;   // of it
  uint64_t first = 0;          // number of the whole's first element
};

Held held_of(const DTensor& x, const Context& context) {
  Held held;
  for (int64_t d = 0; d < x.dim(); ++d) held.shape.push_back(x.size(d));
  int64_t sample = 1;
  for (int64_t d = 1; d < x.dim(); ++d) sample *= x.size(d);
  held.first = static_cast<uint64_t>(context.first_sample * sample);
  if (x.placement().is_shard()) {
    held.dim = x.placement().dim();
    held.ranges = x.placement().split()->ranges(x.axis().rank());
  } else {
    held.ranges = {{0, x.size(0)}};
  }
  return held;
}

/// Uniform random numbers for the elements of `like`, in memory order.
Tensor local_uniform(const Held& held, const Tensor& like, uint64_t key, uint64_t step) {
  count_random_numbers(like.numel());
  if (like.is_meta()) return at::empty_like(like, at::kFloat);  // dry run
  Tensor out = at::empty(like.sizes(), at::kFloat);
  float* to = out.mutable_data_ptr<float>();
  const auto dim = static_cast<size_t>(held.dim);
  const at::IntArrayRef shape = held.shape;
  const int64_t outer = c10::multiply_integers(shape.slice(0, dim));
  const int64_t inner = c10::multiply_integers(shape.slice(dim + 1));
  for (int64_t o = 0; o < outer; ++o) {
    for (const Range& r : held.ranges) {
      const auto begin = static_cast<uint64_t>((o * shape[dim] + r.begin) * inner);
      const auto count = static_cast<size_t>(r.size() * inner);
      fill_uniform(key, step, held.first + begin, {to, count});
      to += count;
    }
  }
  return out;
}

/// One stream's dropout of elements that a rank has.
struct Mask {
  Held held;
  uint64_t key = 0, step = 0;
  double p = 0;

  /// Empty for more ranges than kernels support.
  [[nodiscard]] std::optional<ShardPlace> place() const {
    return shard_place(held.shape, held.dim, held.ranges, held.first);
  }
  /// Whether kernels make the mask of tensors like `t`.
  [[nodiscard]] bool has_kernel(const Tensor& t) const {
    const at::ScalarType type = t.scalar_type();
    return is_on(Kernel::kRandom) && place().has_value() && t.numel() > 0 &&
           (type == at::kFloat || type == at::kBFloat16) &&
           (t.is_cpu() || t.is_meta() || device_kernels(t) != nullptr);
  }
  /// `t` times the mask; undefined `t`: `scale` times whether elements are kept. By a kernel.
  [[nodiscard]] Tensor by_kernel(const Tensor& t, const Tensor& like, double scale) const {
    const Tensor in = t.defined() ? t.contiguous() : t;
    Tensor out = at::empty(like.sizes(), like.options());
    count_random_numbers(out.numel());
    count_pass({&in}, {&out});
    if (out.is_meta()) return out;
    const DropoutJob job{
        .is_bf16 = out.scalar_type() == at::kBFloat16,
        .count = out.numel(),
        .x = in.defined() ? in.const_data_ptr() : nullptr,
        .out = out.mutable_data_ptr(),
        .place = place().value(),
        .key = key,
        .step = step,
        .p = static_cast<float>(p),
        .scale = at::scalar_tensor(scale, out.scalar_type()).to(at::kFloat).item<float>()};
    if (const DeviceKernels* kernels = device_kernels(out)) {
      kernels->dropout(job);
    } else {
      dropout_elements(job);
    }
    return out;
  }
  /// 1/(1-p) or 0 for each element.
  [[nodiscard]] Tensor like(const Tensor& t) const {
    if (has_kernel(t)) return by_kernel({}, t, 1 / (1 - p));
    const Tensor narrow = at::empty({1}, t.options().dtype(at::kFloat)).expand(t.sizes());
    const Tensor keep =
        has_kernel(narrow) ? by_kernel({}, narrow, 1) : local_uniform(held, t, key, step).ge(p);
    return keep.to(t.options(), /*non_blocking=*/true).mul_(1 / (1 - p));
  }
};

Mask mask_of(const DTensor& x, double p, const std::string& stream, const Context& context) {
  return {.held = held_of(x, context),
          .key = dropout_key(stream, context),
          .step = static_cast<uint64_t>(context.step),
          .p = p};
}

}  // namespace

uint64_t dropout_key(const std::string& stream, const Context& context) {
  return stream_key(context.seed, "dropout " + stream);
}

Dropout::Dropout(double p) : p_(p) {
  CLEAVE_CHECK(p >= 0 && p < 1, Code::kUsage, "Dropout(p=", p, "); p must be in [0, 1)");
}

Tensor dropout_mask(const DTensor& x, double p, const std::string& stream, const Context& context) {
  return mask_of(x, p, stream, context).like(x.local());
}

Tensor dropout_mask(const AttentionDropout& dropout, const Tensor& probabilities) {
  std::vector<int64_t> shape = probabilities.sizes().vec();
  const int64_t end = dropout.first_head + shape[1];
  shape[1] = dropout.num_heads;
  const int64_t first = dropout.first_sample * shape[1] * shape[2] * shape[3];
  const Mask mask{.held = {.shape = shape,
                           .dim = 1,
                           .ranges = {{dropout.first_head, end}},
                           .first = static_cast<uint64_t>(first)},
                  .key = dropout.key,
                  .step = dropout.step,
                  .p = dropout.p};
  return mask.like(probabilities);
}

DTensor Dropout::forward(const DTensor& x, const Context& context) {
  if (!context.training || p_ == 0) return x;
  CLEAVE_CHECK(!x.placement().is_partial(), Code::kShape, path(),
               ": dropout of partial sums made by ", x.maker(),
               " would drop different elements on each rank; redistribute first");
  const Mask mask = mask_of(x, p_, path(), context);
  if (!mask.has_kernel(x.local())) return x.with(x.local() * mask.like(x.local()));
  // Backward makes the mask again instead of keeping it.
  const auto masked = [mask](const Tensor& t) { return mask.by_kernel(t, t, 1 / (1 - mask.p)); };
  return x.with(differentiable("dropout", x.local(), masked, masked));
}

}  // namespace cleave::inline nn
