#pragma once
#include "cleave/comm/api/device.h"

namespace cleave::inline mesh {

/// Collectives of device memory through host memory: copies to the host, calls the host's
/// collective, copies back. For ranks that share a GPU, which NCCL does not support. Sums have the
/// bits of the host's.
class StagedGroup : public DeviceGroup {
 public:
  /// Both must outlive this.
  StagedGroup(Device& device, Group& group) : device_(device), group_(group) {}

  DeviceWorkPtr all_reduce(const void* in, void* out, int64_t count, DType dtype,
                           ReduceOp op) override;
  DeviceWorkPtr all_gather(const void* in, void* out, int64_t rows, std::span<const int64_t> widths,
                           DType dtype) override;
  DeviceWorkPtr reduce_scatter(const void* in, void* out, int64_t rows,
                               std::span<const int64_t> widths, DType dtype) override;
  DeviceWorkPtr broadcast(void* data, int64_t count, DType dtype, int root) override;
  DeviceWorkPtr all_to_all(const void* in, std::span<const int64_t> send_counts, void* out,
                           std::span<const int64_t> recv_counts, DType dtype) override;

 private:
  /// Host memory with a copy of `bytes` of device memory.
  const std::byte* copied(const void* in, int64_t bytes);
  void copy_back(void* out, const std::byte* from, int64_t bytes);

  Device& device_;
  Group& group_;
  DeviceCopyBuffer in_, out_;
};

}  // namespace cleave::inline mesh
