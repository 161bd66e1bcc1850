#include "cleave/nn/dropout.h"

#include <optional>
#include <vector>

#include <ATen/ATen.h>

#include "cleave/base/philox.h"
#include "cleave/kernels/device.h"
#include "cleave/runtime/kernel_switches.h"
#include "cleave/torch_internals/node.h"

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

/// Uniform random numbers for this rank's elements, in memory order.
Tensor local_uniform(const DTensor& x, uint64_t key, const Context& context) {
  if (x.local().is_meta()) return at::empty_like(x.local(), at::kFloat);  // dry run
  Tensor out = at::empty(x.local().sizes(), at::kFloat);
  float* to = out.mutable_data_ptr<float>();
  const Held held = held_of(x, context);
  int64_t outer = 1;
  int64_t inner = 1;
  for (int64_t d = 0; d < x.dim(); ++d) {
    if (d < held.dim) outer *= x.size(d);
    if (d > held.dim) inner *= x.size(d);
  }
  for (int64_t o = 0; o < outer; ++o) {
    for (const Range& r : held.ranges) {
      const auto begin = static_cast<uint64_t>((o * x.size(held.dim) + r.begin) * inner);
      const auto count = static_cast<size_t>(r.size() * inner);
      fill_uniform(key, static_cast<uint64_t>(context.step), held.first + begin, {to, count});
      to += count;
    }
  }
  return out;
}

uint64_t key_of(const std::string& stream, const Context& context) {
  return stream_key(context.seed, "dropout " + stream);
}

/// The kernel of the device of `x`, if it has one, with everything but the memory.
struct DeviceDropout {
  const DeviceKernels* kernels = nullptr;
  DropoutJob job;

  /// Undefined `t`: the mask of a tensor like `like`.
  [[nodiscard]] Tensor operator()(const Tensor& t, const Tensor& like) const {
    const Tensor in = t.defined() ? t.contiguous() : t;
    Tensor out = at::empty(like.sizes(), like.options());
    DropoutJob own = job;
    if (in.defined()) own.x = in.const_data_ptr();
    own.out = out.mutable_data_ptr();
    kernels->dropout(own);
    return out;
  }
};

std::optional<DeviceDropout> device_dropout(const DTensor& x, double p, const std::string& stream,
                                            const Context& context) {
  const Tensor& local = x.local();
  const DeviceKernels* kernels = is_on(Kernel::kRandom) ? device_kernels(local) : nullptr;
  if (kernels == nullptr) return std::nullopt;
  const Held held = held_of(x, context);
  const auto place = shard_place(held.shape, held.dim, held.ranges, held.first);
  if (!place) return std::nullopt;
  return DeviceDropout{
      .kernels = kernels,
      .job = {
          .is_bf16 = local.scalar_type() == at::kBFloat16,
          .count = local.numel(),
          .place = *place,
          .key = key_of(stream, context),
          .step = static_cast<uint64_t>(context.step),
          .p = static_cast<float>(p),
          .scale =
              at::scalar_tensor(1 / (1 - p), local.scalar_type()).to(at::kFloat).item<float>()}};
}

}  // namespace

Dropout::Dropout(double p) : p_(p) {
  CLEAVE_CHECK(p >= 0 && p < 1, Code::kUsage, "Dropout(p=", p, "); p must be in [0, 1)");
}

Tensor dropout_mask(const DTensor& x, double p, const std::string& stream, const Context& context) {
  if (const auto on_device = device_dropout(x, p, stream, context)) {
    return (*on_device)({}, x.local());
  }
  const Tensor keep = local_uniform(x, key_of(stream, context), context).ge(p);
  return keep.to(x.local().options(), /*non_blocking=*/true).mul_(1 / (1 - p));
}

DTensor Dropout::forward(const DTensor& x, const Context& context) {
  if (!context.training || p_ == 0) return x;
  CLEAVE_CHECK(!x.placement().is_partial(), Code::kShape, path(),
               ": dropout of partial sums made by ", x.maker(),
               " would drop different elements on each rank; redistribute first");
  const auto on_device = device_dropout(x, p_, path(), context);
  if (!on_device) return x.with(x.local() * dropout_mask(x, p_, path(), context));
  // Backward makes the mask again instead of keeping it.
  const auto masked = [on_device](const Tensor& t) { return (*on_device)(t, t); };
  return x.with(differentiable("dropout", x.local(), masked, masked));
}

}  // namespace cleave::inline nn
