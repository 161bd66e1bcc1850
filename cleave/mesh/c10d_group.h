#pragma once
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "cleave/comm/api/device.h"

namespace cleave {

using at::Tensor;

/// The members of a group over one of c10d's backends: NCCL between GPUs.
///
/// Backends want blocks of one size, so uneven ones travel padded to the widest.
class C10dGroup : public DeviceGroup {
 public:
  /// `device` is where the memory of all calls lies; `name` is the group's, for messages.
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
  /// Memory as a tensor of `shape`; a new one where there are no elements.
  [[nodiscard]] Tensor view(const void* data, at::IntArrayRef shape, DType dtype) const;
  [[nodiscard]] Tensor room(at::IntArrayRef shape, DType dtype) const;
  /// Starts a call of the backend and puts what the device does next behind it.
  void run(const std::function<c10::intrusive_ptr<c10d::Work>()>& call) const;

  c10::intrusive_ptr<c10d::Backend> backend_;
  at::Device device_;
  std::string name_;
};

/// The store through which a c10d backend connects the members of a group: what rank 0 of the group
/// sets the others get, each key a broadcast over the group. So a rank that fails meanwhile is
/// noticed as in any collective.
class GroupStore : public c10d::Store {
 public:
  /// `group` lives longer than the store.
  explicit GroupStore(Group& group) : group_(group) {}

  void set(const std::string& key, const std::vector<uint8_t>& value) override;
  std::vector<uint8_t> get(const std::string& key) override;
  /// Backends ask beside their work, on threads of their own, for keys that say another rank's
  /// backend has failed; here the group says so, and no key is ever there.
  bool check(const std::vector<std::string>& keys) override;
  /// The rest of the interface connects nothing: Error(kBug).
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

}  // namespace cleave
