#pragma once
#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "cleave/comm/api/device.h"

namespace cleave::inline mesh {

using at::Tensor;

/// Collectives of a group through a c10d backend, e.g. NCCL between GPUs.
///
/// Backends need equal block sizes, so uneven blocks are padded to the widest.
class C10dGroup : public DeviceGroup {
 public:
  /// `device` holds the memory of all calls; `name` is the group's name, for messages.
  C10dGroup(c10::intrusive_ptr<c10d::Backend> backend, at::Device device, std::string name)
      : backend_(std::move(backend)), device_(device), name_(std::move(name)) {}

  DeviceWorkPtr all_reduce(const void* in, void* out, int64_t count, DType dtype,
                           ReduceOp op) override;
  DeviceWorkPtr all_gather(const void* in, void* out, int64_t rows, std::span<const int64_t> widths,
                           DType dtype) override;
  DeviceWorkPtr reduce_scatter(const void* in, void* out, int64_t rows,
                               std::span<const int64_t> widths, DType dtype) override;
  DeviceWorkPtr broadcast(void* data, int64_t count, DType dtype, int root) override;
  DeviceWorkPtr all_to_all(const void* in, std::span<const int64_t> send_counts, void* out,
                           std::span<const int64_t> recv_counts, DType dtype) override;

 protected:
  [[nodiscard]] c10d::Backend& backend() const { return *backend_; }
  [[nodiscard]] const std::string& name() const { return name_; }

 private:
  /// `data` as a tensor of `shape`; a new tensor when it has no elements.
  [[nodiscard]] Tensor view(const void* data, at::IntArrayRef shape, DType dtype) const;
  [[nodiscard]] Tensor new_tensor(at::IntArrayRef shape, DType dtype) const;
  /// Starts a collective of the backend on `tensors`, which the result keeps. Its wait() calls
  /// `finish`, if there is one, after the device's wait.
  [[nodiscard]] DeviceWorkPtr start(std::vector<Tensor> tensors,
                                    const std::function<c10::intrusive_ptr<c10d::Work>()>& call,
                                    std::function<void()> finish = {}) const;

  c10::intrusive_ptr<c10d::Backend> backend_;
  at::Device device_;
  std::string name_;
};

/// The store through which a c10d backend connects the members of a group. Rank 0 of the group sets
/// keys and the other ranks get them; each key is a broadcast over the group. A rank that fails
/// meanwhile is therefore detected as in any collective.
///
/// A backend keeps its store, and its watchdog thread sets keys after a failure. A broadcast then
/// would mix with the group's own calls, so the store must be closed once the group is connected.
class GroupStore : public c10d::Store {
 public:
  /// `group` must outlive the store.
  explicit GroupStore(Group& group) : group_(group) {}

  /// From now on set() has no effect, and get() returns nothing.
  void close() { is_open_ = false; }

  void set(const std::string& key, const std::vector<uint8_t>& value) override;
  std::vector<uint8_t> get(const std::string& key) override;
  /// Always false. Backends poll, on their own threads, for keys that report a failed backend of
  /// another rank; here the group reports failures.
  bool check(const std::vector<std::string>& keys) override;
  /// The rest of the interface is not needed to connect: Error(kBug).
  c10::intrusive_ptr<c10d::Store> clone() override;
  int64_t add(const std::string& key, int64_t value) override;
  bool deleteKey(const std::string& key) override;
  int64_t getNumKeys() override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override;

  using c10d::Store::set;

 private:
  Group& group_;
  std::atomic<bool> is_open_ = true;
};

}  // namespace cleave::inline mesh
