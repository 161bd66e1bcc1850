#pragma once
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

  void all_reduce(const void* in, void* out, int64_t count, DType dtype, ReduceOp op) override;
  void all_gather(const void* in, void* out, int64_t rows, std::span<const int64_t> widths,
                  DType dtype) override;
  void reduce_scatter(const void* in, void* out, int64_t rows, std::span<const int64_t> widths,
                      DType dtype) override;
  void broadcast(void* data, int64_t count, DType dtype, int root) override;
  void all_to_all(const void* in, std::span<const int64_t> send_counts, void* out,
                  std::span<const int64_t> recv_counts, DType dtype) override;

 protected:
  [[nodiscard]] c10d::Backend& backend() const { return *backend_; }

 private:
  /// `data` as a tensor of `shape`; a new tensor when it has no elements.
  [[nodiscard]] Tensor view(const void* data, at::IntArrayRef shape, DType dtype) const;
  [[nodiscard]] Tensor new_tensor(at::IntArrayRef shape, DType dtype) const;
  /// Starts a collective of the backend; the device's later work waits for it.
  void run(const std::function<c10::intrusive_ptr<c10d::Work>()>& call) const;

  c10::intrusive_ptr<c10d::Backend> backend_;
  at::Device device_;
  std::string name_;
};

/// The store through which a c10d backend connects the members of a group. Rank 0 of the group sets
/// keys and the other ranks get them; each key is a broadcast over the group. A rank that fails
/// meanwhile is therefore detected as in any collective.
class GroupStore : public c10d::Store {
 public:
  /// `group` must outlive the store.
  explicit GroupStore(Group& group) : group_(group) {}

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
};

}  // namespace cleave::inline mesh
