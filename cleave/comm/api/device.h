#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "cleave/comm/api/group.h"

namespace cleave::inline comm {

/// A collective that a DeviceGroup has queued on the device.
class DeviceWork {
 public:
  /// Waits like wait() if wait() was not called. Throws nothing.
  virtual ~DeviceWork() = default;
  DeviceWork() = default;
  DeviceWork(const DeviceWork&) = delete;
  DeviceWork& operator=(const DeviceWork&) = delete;

  /// Makes the device wait: what the calling thread queues later sees the result. Until then the
  /// collective may read and write its memory at any time. Throws Error(kPeer) if it has failed.
  virtual void wait() = 0;
};

/// Null if there is nothing to wait for.
using DeviceWorkPtr = std::unique_ptr<DeviceWork>;

/// Collectives over device (GPU) memory among the members of one group. The calls mean the same as
/// those of Group, except that sums may add in another order.
///
/// All members call in the same order, after they have agreed on the operation. A call returns when
/// the operation is queued on the device. It throws Error(kPeer) when the device's library (NCCL)
/// fails.
class DeviceGroup {
 public:
  virtual ~DeviceGroup() = default;
  DeviceGroup() = default;
  DeviceGroup(const DeviceGroup&) = delete;
  DeviceGroup& operator=(const DeviceGroup&) = delete;

  /// Ends the queued collectives, because the job has failed; their results are undefined, and
  /// later calls throw. Called on another thread than the collectives, which may be waiting.
  virtual void abort() {}
  /// Why the device's library has failed since the last call; "" if it has not. Also called on
  /// another thread.
  [[nodiscard]] virtual std::string failure() { return ""; }

  /// Whether the device can record collectives with its other work, and later repeat all of it in
  /// one start (kernels/recorded_work.h). All members must then repeat it equally often.
  [[nodiscard]] virtual bool can_record() const { return false; }

  /// out[i] = sum or max over ranks of in[i], i < count. `in` may be `out`, here and below.
  virtual DeviceWorkPtr all_reduce(const void* in, void* out, int64_t count, DType dtype,
                                   ReduceOp op) = 0;
  /// Rank r passes [rows, widths[r]]; every rank gets [rows, sum(widths)].
  virtual DeviceWorkPtr all_gather(const void* in, void* out, int64_t rows,
                                   std::span<const int64_t> widths, DType dtype) = 0;
  /// Every rank passes [rows, sum(widths)]; rank r gets the sum of its columns, [rows, widths[r]].
  virtual DeviceWorkPtr reduce_scatter(const void* in, void* out, int64_t rows,
                                       std::span<const int64_t> widths, DType dtype) = 0;
  /// Copies `data` of `root` to all ranks.
  virtual DeviceWorkPtr broadcast(void* data, int64_t count, DType dtype, int root) = 0;
  /// send_counts[r] elements to rank r, recv_counts[r] from rank r, both packed in rank order.
  virtual DeviceWorkPtr all_to_all(const void* in, std::span<const int64_t> send_counts, void* out,
                                   std::span<const int64_t> recv_counts, DType dtype) = 0;

  /// Connects the neighbours (are_neighbours()) of `group` for messages; collective, once. Returns
  /// false if the device has no messages of its own.
  virtual bool connect_messages(Group& /*group*/) { return false; }
  /// Queues a message to a neighbour. Operations that are queued later may change `data`.
  virtual void send(const void* /*data*/, int64_t /*count*/, DType /*dtype*/, int /*to*/) {
    CLEAVE_BUG("a device without messages sends one");
  }
  /// The next message from a neighbour, which has the same count and dtype.
  virtual DeviceWorkPtr recv(void* /*data*/, int64_t /*count*/, DType /*dtype*/, int /*from*/) {
    CLEAVE_BUG("a device without messages receives one");
  }
};

/// Whether two ranks of a group of `size` exchange messages of device memory on the device: each
/// rank with the next one, and the last with the first, as the stages of a pipeline do.
inline bool are_neighbours(int a, int b, int size) {
  return (a + 1) % size == b || (b + 1) % size == a;
}

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

  /// New host memory for such copies: page-locked if the device copies faster then.
  [[nodiscard]] virtual std::shared_ptr<std::byte[]> host_memory(size_t bytes) {
    return std::make_shared_for_overwrite<std::byte[]>(bytes);
  }

  /// Connects the members of a group. Collective over `group`, which must outlive the result.
  virtual std::unique_ptr<DeviceGroup> connect(Group& group) = 0;
};

/// Host memory for copies from and to a device, which is kept for the next copy.
class DeviceCopyBuffer {
 public:
  /// At least `bytes`, until the next call. Contents are undefined.
  std::byte* get(Device& device, size_t bytes) {
    if (bytes > bytes_) {
      memory_.reset();
      memory_ = device.host_memory(bytes);
      bytes_ = bytes;
    }
    return memory_.get();
  }

 private:
  std::shared_ptr<std::byte[]> memory_;
  size_t bytes_ = 0;
};

}  // namespace cleave::inline comm
