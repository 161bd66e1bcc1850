#pragma once
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "cleave/base/range.h"
#include "cleave/kernels/cuda/device_kernels.h"

namespace cleave::inline kernels {

using at::Tensor;

/// Sets Cleave's kernels for tensors on devices of a type; null: none. libcleave_cuda sets those
/// for GPUs when it is loaded.
void set_device_kernels(c10::DeviceType type, const DeviceKernels* kernels);

/// Whether tensors like `t` are computed as on the CPU: those on the CPU, and on the meta device
/// unless there is a MetaStandsForGpu.
bool takes_ways_of_cpu(const Tensor& t);

/// While it lives, the meta device stands for a GPU on this thread, so that a dry run takes the
/// memory that a GPU would.
class MetaStandsForGpu {
 public:
  MetaStandsForGpu();
  ~MetaStandsForGpu();
  MetaStandsForGpu(const MetaStandsForGpu&) = delete;
  MetaStandsForGpu& operator=(const MetaStandsForGpu&) = delete;
};

/// The kernels for tensors like `t`: fp32 or bf16, not empty, on a device with kernels. Null for
/// others, so on the CPU and the meta device.
const DeviceKernels* device_kernels(const Tensor& t);
/// The same for new tensors of the type on a device.
const DeviceKernels* device_kernels(at::Device device, at::ScalarType type);

/// The place of a rank's `ranges` of dim `dim` in a whole tensor of `shape`, whose first element
/// has the number `first` in its stream. Empty for more ranges than kernels support.
std::optional<ShardPlace> shard_place(at::IntArrayRef shape, int64_t dim,
                                      const std::vector<Range>& ranges, uint64_t first);

/// L2 norms in fp64 of tensors that `kernels` support, with one synchronization of the device.
std::vector<double> l2_norms(const DeviceKernels& kernels, const std::vector<Tensor>& tensors);

}  // namespace cleave::inline kernels
