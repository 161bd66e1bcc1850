#pragma once
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cleave/comm/api/device.h"
#include "cleave/mesh/c10d_group.h"
#include "cleave/mesh/scalar_type.h"

namespace cleave::test {

using C10dWorkPtr = c10::intrusive_ptr<c10d::Work>;

/// While it lives, all memory that the thread passes to groups counts as host memory.
class AsHostMemory {
 public:
  AsHostMemory() : before_(std::exchange(active_, true)) {}
  ~AsHostMemory() { active_ = before_; }
  AsHostMemory(const AsHostMemory&) = delete;
  AsHostMemory& operator=(const AsHostMemory&) = delete;
  static bool is_active() { return active_; }

 private:
  static inline thread_local bool active_ = false;
  bool before_;
};

/// A c10d backend that moves host memory through a group in blocks of equal size, as NCCL does.
class HostBackend : public c10d::Backend {
 public:
  explicit HostBackend(Group& group) : Backend(group.rank(), group.size()), group_(group) {}
  [[nodiscard]] const std::string getBackendName() const override {  // NOLINT(readability-const*)
    return "host";
  }

  C10dWorkPtr allreduce(std::vector<Tensor>& data, const c10d::AllreduceOptions& options) override {
    const AsHostMemory scope;
    void* const at = data[0].mutable_data_ptr();
    const bool is_max = options.reduceOp.op_ == c10d::ReduceOp::MAX;
    group_.all_reduce(at, at, data[0].numel(), type_of(data[0]),
                      is_max ? ReduceOp::kMax : ReduceOp::kSum, call());
    return {};
  }
  C10dWorkPtr broadcast(std::vector<Tensor>& data, const c10d::BroadcastOptions& options) override {
    const AsHostMemory scope;
    group_.broadcast(data[0].mutable_data_ptr(), data[0].numel(), type_of(data[0]),
                     static_cast<int>(options.rootRank), call());
    return {};
  }
  C10dWorkPtr _allgather_base(Tensor& to, Tensor& from, const c10d::AllgatherOptions&) override {
    const AsHostMemory scope;
    TORCH_CHECK(to.numel() == from.numel() * getSize(), "blocks of several sizes");
    group_.all_gather(from.const_data_ptr(), to.mutable_data_ptr(), 1, equal_widths(from.numel()),
                      type_of(to), call());
    return {};
  }
  C10dWorkPtr _reduce_scatter_base(Tensor& to, Tensor& from,
                                   const c10d::ReduceScatterOptions&) override {
    const AsHostMemory scope;
    TORCH_CHECK(from.numel() == to.numel() * getSize(), "blocks of several sizes");
    group_.reduce_scatter(from.const_data_ptr(), to.mutable_data_ptr(), 1, equal_widths(to.numel()),
                          type_of(to), call());
    return {};
  }
  C10dWorkPtr alltoall_base(Tensor& to, Tensor& from, std::vector<int64_t>& received,
                            std::vector<int64_t>& sent, const c10d::AllToAllOptions&) override {
    const AsHostMemory scope;
    group_.all_to_all(from.const_data_ptr(), sent, to.mutable_data_ptr(), received, type_of(to),
                      call());
    return {};
  }

 private:
  static DType type_of(const Tensor& t) { return dtype_of(t.scalar_type()); }
  static Call call() { return {.site = "host backend", .shape = {}}; }
  [[nodiscard]] std::vector<int64_t> equal_widths(int64_t width) const {
    return std::vector<int64_t>(static_cast<size_t>(getSize()), width);
  }
  Group& group_;
};

/// The collectives of a group that have been issued and have moved no data yet, in their order.
class LateCalls {
 public:
  /// Returns the number of the call, from 1.
  int64_t add(std::function<void()> call) {
    calls_.push_back(std::move(call));
    return ++num_added_;
  }
  /// Runs the calls up to and including this one.
  void run_through(int64_t number) {
    while (num_run_ < number) {
      const auto call = std::move(calls_.front());
      calls_.pop_front();
      ++num_run_;
      call();
    }
  }

 private:
  std::deque<std::function<void()>> calls_;
  int64_t num_added_ = 0, num_run_ = 0;
};

/// A HostBackend whose collectives move their data only in wait() of their Work, or in that of a
/// later one: as late as NCCL may. Reading a result, changing an input or freeing memory before
/// wait() therefore shows.
class LateBackend : public HostBackend {
 public:
  using HostBackend::HostBackend;

  C10dWorkPtr allreduce(std::vector<Tensor>& data, const c10d::AllreduceOptions& options) override {
    return later([this, data, options]() mutable { HostBackend::allreduce(data, options); });
  }
  C10dWorkPtr broadcast(std::vector<Tensor>& data, const c10d::BroadcastOptions& options) override {
    return later([this, data, options]() mutable { HostBackend::broadcast(data, options); });
  }
  C10dWorkPtr _allgather_base(Tensor& to, Tensor& from,
                              const c10d::AllgatherOptions& options) override {
    return later(
        [this, to, from, options]() mutable { HostBackend::_allgather_base(to, from, options); });
  }
  C10dWorkPtr _reduce_scatter_base(Tensor& to, Tensor& from,
                                   const c10d::ReduceScatterOptions& options) override {
    return later([this, to, from, options]() mutable {
      HostBackend::_reduce_scatter_base(to, from, options);
    });
  }
  C10dWorkPtr alltoall_base(Tensor& to, Tensor& from, std::vector<int64_t>& received,
                            std::vector<int64_t>& sent,
                            const c10d::AllToAllOptions& options) override {
    return later([this, to, from, received, sent, options]() mutable {
      HostBackend::alltoall_base(to, from, received, sent, options);
    });
  }

 private:
  class LateWork : public c10d::Work {
   public:
    LateWork(std::shared_ptr<LateCalls> calls, int64_t number)
        : calls_(std::move(calls)), number_(number) {}
    bool wait(std::chrono::milliseconds /*timeout*/) override {
      calls_->run_through(number_);
      return true;
    }

   private:
    std::shared_ptr<LateCalls> calls_;
    int64_t number_;
  };

  C10dWorkPtr later(std::function<void()> call) {
    const int64_t number = calls_->add(std::move(call));
    return c10::make_intrusive<LateWork>(calls_, number);
  }

  std::shared_ptr<LateCalls> calls_ = std::make_shared<LateCalls>();
};

/// A c10d backend for messages in one direction between two ranks of a group. The receiver's memory
/// is written only in wait().
class HostPair : public c10d::Backend {
 public:
  HostPair(Group& group, int peer, int rank) : Backend(rank, 2), group_(group), peer_(peer) {}
  [[nodiscard]] const std::string getBackendName() const override {  // NOLINT(readability-const*)
    return "host";
  }

  void startCoalescing() override {}
  C10dWorkPtr endCoalescing() override {
    return c10::make_intrusive<PairWork>(std::exchange(receive_, nullptr));
  }
  C10dWorkPtr send(std::vector<Tensor>& tensors, int /*to*/, int /*tag*/) override {
    const AsHostMemory scope;
    const Tensor& t = tensors[0];
    group_.send(t.const_data_ptr(), t.numel(), dtype_of(t.scalar_type()), peer_, call());
    return {};
  }
  C10dWorkPtr recv(std::vector<Tensor>& tensors, int /*from*/, int /*tag*/) override {
    receive_ = [this, t = tensors[0]] {
      const AsHostMemory scope;
      group_.recv(t.mutable_data_ptr(), t.numel(), dtype_of(t.scalar_type()), peer_, call());
    };
    return {};
  }

 private:
  class PairWork : public c10d::Work {
   public:
    explicit PairWork(std::function<void()> receive) : receive_(std::move(receive)) {}
    bool isCompleted() override { return receive_ == nullptr; }
    bool wait(std::chrono::milliseconds /*timeout*/) override {
      if (receive_) std::exchange(receive_, nullptr)();
      return true;
    }

   private:
    std::function<void()> receive_;
  };

  static Call call() { return {.site = "host pair", .shape = {}}; }
  Group& group_;
  int peer_;
  std::function<void()> receive_;
};

/// A C10dGroup of host memory with messages.
template <class SomeBackend>
class HostGroup : public C10dGroup {
 public:
  explicit HostGroup(Group& group)
      : C10dGroup(c10::make_intrusive<SomeBackend>(group), at::kCPU, group.name()) {}

 protected:
  BackendPtr connect_pair(Group& group, int peer, int rank) override {
    return c10::make_intrusive<HostPair>(group, peer, rank);
  }
};

/// A fake device whose memory is `memory`, part of the host's; empty: all host memory.
class HostDevice : public Device {
 public:
  explicit HostDevice(std::span<const std::byte> memory = {}) : memory_(memory) {}
  [[nodiscard]] bool holds(const void* data) const override {
    if (data == nullptr || AsHostMemory::is_active()) return false;
    const auto* at = static_cast<const std::byte*>(data);
    return memory_.empty() || (at >= memory_.data() && at < memory_.data() + memory_.size());
  }
  void copy(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
  std::unique_ptr<DeviceGroup> connect(Group& group) override {
    return std::make_unique<HostGroup<HostBackend>>(group);
  }

 private:
  std::span<const std::byte> memory_;
};

/// A fake device whose collectives are late (LateBackend). Its memory is all host memory.
class LateDevice : public HostDevice {
 public:
  std::unique_ptr<DeviceGroup> connect(Group& group) override {
    return std::make_unique<HostGroup<LateBackend>>(group);
  }
};

}  // namespace cleave::test
