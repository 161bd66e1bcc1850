#pragma once
#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>
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
  using BackendPtr = c10::intrusive_ptr<c10d::Backend>;  ///< the library's group
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;        ///< its queued collective or message

  /// `device` holds the memory of all calls; `name` is the group's name, for messages.
  C10dGroup(BackendPtr backend, at::Device device, std::string name)
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

  bool connect_messages(Group& group) override;
  void send(const void* data, int64_t count, DType dtype, int to) override;
  DeviceWorkPtr recv(void* data, int64_t count, DType dtype, int from) override;

 protected:
  /// A backend of two ranks for messages in one direction between this rank, which is `rank` of the
  /// two, and `peer` of `group`. Both call this together. Null if the device has none.
  [[nodiscard]] virtual BackendPtr connect_pair(Group& /*group*/, int /*peer*/, int /*rank*/) {
    return {};
  }
  /// Calls act(backend) for the group's backend and those of its messages.
  template <class Act>
  void for_each_backend(const Act& act) {
    const std::lock_guard lock(pairs_mutex_);
    act(*backend_);
    for (const auto& [direction, pair] : pairs_) act(*pair);
  }
  [[nodiscard]] const std::string& name() const { return name_; }

 private:
  /// `data` as a tensor of `shape`; a new tensor when it has no elements.
  [[nodiscard]] Tensor view(const void* data, at::IntArrayRef shape, DType dtype) const;
  [[nodiscard]] Tensor new_tensor(at::IntArrayRef shape, DType dtype) const;
  /// Starts a collective of the backend on `tensors`, which the result keeps. Its wait() calls
  /// `finish`, if there is one, after the device's wait.
  [[nodiscard]] DeviceWorkPtr start(std::vector<Tensor> tensors,
                                    const std::function<WorkPtr()>& call,
                                    std::function<void()> finish = {}) const;

  /// Queues a message of `tensor` on the backend of its direction.
  [[nodiscard]] WorkPtr message(int from, int to, const Tensor& tensor);
  /// Frees the copies of messages that their receivers have.
  void free_sent();
  [[nodiscard]] std::string subject() const;

  BackendPtr backend_;
  at::Device device_;
  std::string name_;
  // By sender and receiver. A direction has its own backend, whose queue no other message holds up.
  std::map<std::pair<int, int>, BackendPtr> pairs_;
  std::mutex pairs_mutex_;  // the rank's thread adds pairs; another one may end them
  std::deque<std::pair<WorkPtr, Tensor>> sent_;  // messages and their copies
};

/// The store through which a c10d backend connects all members of a group, or two of them. Rank 0
/// of these sets keys and the others get them; each key is a broadcast over the group, or a message
/// between the two. A rank that fails meanwhile is therefore detected as in any collective.
///
/// A backend keeps its store, and its watchdog thread sets keys after a failure. A broadcast then
/// would mix with the group's own calls, so the store must be closed once the group is connected.
class GroupStore : public c10d::Store {
 public:
  /// `group` must outlive the store.
  explicit GroupStore(Group& group) : group_(group), rank_(group.rank()) {}
  /// The store of two members of `group`: this rank, which is number `rank` of the two, and `peer`.
  GroupStore(Group& group, int peer, int rank) : group_(group), peer_(peer), rank_(rank) {}

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
  /// Passes `count` elements from rank 0 to the others.
  void pass(void* data, int64_t count, DType dtype, const std::string& key);

  Group& group_;
  int peer_ = -1;  // -1: all members
  int rank_;
  std::atomic<bool> is_open_ = true;
};

}  // namespace cleave::inline mesh
