#include "cleave/nn/initial_value.h"

#include <ATen/ATen.h>

#include "cleave/base/philox.h"
#include "cleave/kernels/device.h"
#include "cleave/runtime/kernel_switches.h"

namespace cleave::inline nn {

Tensor initial_value_on(at::Device device, const Parameter& p, uint64_t seed,
                        at::ScalarType dtype) {
  const Init& init = p.init();
  const DeviceKernels* kernels = is_on(Kernel::kRandom) ? device_kernels(device, dtype) : nullptr;
  const auto place = shard_place(p.shape(), p.split_dim(), p.ranges(), 0);
  if (kernels == nullptr || !place || init.kind == Init::Kind::kConstant || init.zero_row >= 0) {
    return p.initial_value(seed, dtype).to(device);
  }
  const Tensor out = at::empty(p.local_shape(), at::device(device).dtype(dtype));
  kernels->initial_values({.is_bf16 = dtype == at::kBFloat16,
                           .is_normal = init.kind == Init::Kind::kNormal,
                           .count = out.numel(),
                           .out = out.mutable_data_ptr(),
                           .place = *place,
                           .key = stream_key(seed, p.name()),
                           .factor = init.value});
  if (!p.is_flat()) return out;
  return out.flatten().narrow(0, p.flat_range().begin, p.flat_range().size()).clone();
}

void materialize_on(at::Device device, Layer& model, const MaterializeOptions& options) {
  model.name_tree();
  for (const auto& p : model.parameters()) {
    const bool is_mine = p->ownership() != Parameter::Ownership::kNotOwned;
    // Matrices are quantized on the CPU.
    if (!is_mine || p->leaf().defined() || p->is_quantized()) continue;
    p->set_leaf(initial_value_on(device, *p, options.seed, p->leaf_type(options.dtype)));
  }
  materialize(model, options);
  move_to(model, device);
}

}  // namespace cleave::inline nn
