#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "cleave/comm/api/group.h"

namespace cleave::inline comm {

/// Collectives over device (GPU) memory among the members of one group. The calls mean the same as
/// those of Group, except that sums may add in another order.
///
/// All members call in the same order, after they have agreed on the operation. A call returns when
/// the operation is queued on the rank's device stream. It throws Error(kPeer) when the device's
/// library (NCCL) fails.
class DeviceGroup {
 public:
  virtual ~DeviceGroup() = default;
  DeviceGroup() = default;
  DeviceGroup(const DeviceGroup&) = delete;
  DeviceGroup& operator=(const DeviceGroup&) = delete;

  /// out[i] = sum or max over ranks of in[i], i < count. `in` may be `out`, here and below.
  virtual void all_reduce(const void* in, void* out, int64_t count, DType dtype, ReduceOp op) = 0;
  /// Rank r passes [rows, widths[r]]; every rank gets [rows, sum(widths)].
  virtual void all_gather(const void* in, void* out, int64_t rows, std::span<const int64_t> widths,
                          DType dtype) = 0;
  /// Every rank passes [rows, sum(widths)]; rank r gets the sum of its columns, [rows, widths[r]].
  virtual void reduce_scatter(const void* in, void* out, int64_t rows,
                              std::span<const int64_t> widths, DType dtype) = 0;
  /// Copies `data` of `root` to all ranks.
  virtual void broadcast(void* data, int64_t count, DType dtype, int root) = 0;
  /// send_counts[r] elements to rank r, recv_counts[r] from rank r, both packed in rank order.
  virtual void all_to_all(const void* in, std::span<const int64_t> send_counts, void* out,
                          std::span<const int64_t> recv_counts, DType dtype) = 0;
};

/// The device that a rank computes on in addition to its CPU.
class Device {
 public:
  virtual ~Device() = default;
  Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  /// Whether this is device memory; false for nullptr.
  [[nodiscard]] virtual bool holds(const void* data) const = 0;

  /// Copies `bytes` from, to or within the device, in stream order; returns when the copy is done.
  virtual void copy(void* to, const void* from, size_t bytes) = 0;

  /// Connects the members of a group. Collective over `group`, which must outlive the result.
  virtual std::unique_ptr<DeviceGroup> connect(Group& group) = 0;
};

}  // namespace cleave::inline comm
