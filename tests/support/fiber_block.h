#pragma once
// Runs CUDA kernels on the CPU: each thread of a block is a fiber, i.e. a context with its own
// stack on one thread of the operating system. Fibers change only at barriers and exchanges. So
// memory errors show under sanitizers, and with two orders of the fibers a missing barrier shows as
// different results.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <ucontext.h>
#include <vector>

#include "cleave/kernels/cuda/block.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif

namespace cleave::test {

/// A stack and registers.
struct FiberContext {
  ucontext_t machine{};
  const void* bottom = nullptr;  // of the stack
  size_t size = 0;
  void* fake_stack = nullptr;  // the address sanitizer's
};

/// Stops `from` until something switches to it.
inline void switch_fiber(FiberContext& from, FiberContext& to) {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_start_switch_fiber(&from.fake_stack, to.bottom, to.size);
#endif
  swapcontext(&from.machine, &to.machine);
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(from.fake_stack, nullptr, nullptr);
#endif
}

/// Barrier of `size` fibers.
struct FiberBarrier {
  int size = 0, arrived = 0;
  int64_t generation = 0;
};

/// The fibers of one block at a time.
class Fibers {
 public:
  Fibers(const Grid& grid, bool is_reversed)
      : is_reversed_(is_reversed),
        all_{.size = grid.threads},
        warps_(static_cast<size_t>(grid.threads / kWarp), {.size = kWarp}),
        exchanged_(static_cast<size_t>(grid.threads)),
        shared_(static_cast<size_t>(grid.shared_bytes)) {
    for (int i = 0; i < grid.threads; ++i) fibers_.push_back(std::make_unique<Fiber>());
  }

  /// Runs body(thread) in a fiber for each thread. Throws std::logic_error when fibers wait at
  /// barriers that others do not reach.
  void run(const std::function<void(int)>& body) {
    body_ = &body;
    std::fill(shared_.begin(), shared_.end(), std::byte{0xFF});  // NaN, as after another kernel
    for (auto& fiber : fibers_) start(*fiber);
    left_ = fibers_.size();
    while (left_ > 0) {
      bool has_moved = false;
      for (size_t i = 0; i < warps_.size(); ++i) {
        while (run_warp(is_reversed_ ? warps_.size() - 1 - i : i)) has_moved = true;
      }
      if (!has_moved) throw std::logic_error("threads of a block wait for ever");
    }
  }

  void wait(FiberBarrier& barrier) {
    const int64_t own = barrier.generation;
    if (++barrier.arrived == barrier.size) {
      barrier.arrived = 0;
      ++barrier.generation;
      moved_ = true;
      return;
    }
    const size_t self = current_;
    while (barrier.generation == own) switch_fiber(fibers_[self]->context, main_);
  }
  void sync() { wait(all_); }
  void sync_warp(int thread) { wait(warps_[static_cast<size_t>(thread / kWarp)]); }
  [[nodiscard]] double& exchanged(int thread) { return exchanged_[static_cast<size_t>(thread)]; }
  [[nodiscard]] void* shared() { return shared_.data(); }

 private:
  static constexpr size_t kStackBytes = size_t{64} << 10;
  struct Fiber {
    FiberContext context;
    bool is_done = false;
    std::vector<std::byte> stack = std::vector<std::byte>(kStackBytes);
  };

  /// Runs each fiber of a warp up to its next barrier. False if none ended or passed one.
  bool run_warp(size_t warp) {
    const size_t before = left_;
    moved_ = false;
    for (size_t i = 0; i < size_t{kWarp}; ++i) {
      current_ = warp * kWarp + (is_reversed_ ? kWarp - 1 - i : i);
      Fiber& fiber = *fibers_[current_];
      if (fiber.is_done) continue;
      running() = this;
      switch_fiber(main_, fiber.context);
      if (fiber.is_done) --left_;
    }
    return left_ < before || moved_;
  }

  /// The fibers that the calling thread runs; makecontext cannot pass a pointer.
  static Fibers*& running() {
    static thread_local Fibers* fibers = nullptr;
    return fibers;
  }

  void start(Fiber& fiber) {
    fiber.is_done = false;
    fiber.context.fake_stack = nullptr;
    fiber.context.bottom = fiber.stack.data();
    fiber.context.size = fiber.stack.size();
    getcontext(&fiber.context.machine);
    fiber.context.machine.uc_stack.ss_sp = fiber.stack.data();
    fiber.context.machine.uc_stack.ss_size = fiber.stack.size();
    fiber.context.machine.uc_link = &main_.machine;
    makecontext(&fiber.context.machine, &Fibers::enter, 0);
  }

  static void enter() {
    Fibers& self = *running();
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(nullptr, &self.main_.bottom, &self.main_.size);
#endif
    Fiber& fiber = *self.fibers_[self.current_];
    (*self.body_)(static_cast<int>(self.current_));
    fiber.is_done = true;
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_start_switch_fiber(nullptr, self.main_.bottom, self.main_.size);
#endif
  }

  bool is_reversed_;
  FiberBarrier all_;
  std::vector<FiberBarrier> warps_;
  std::vector<double> exchanged_;
  std::vector<std::byte> shared_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  FiberContext main_;
  const std::function<void(int)>* body_ = nullptr;
  size_t current_ = 0;
  size_t left_ = 0;     // fibers that have not ended
  bool moved_ = false;  // whether a barrier was passed
};

/// The block of threads of kernels/cuda/block.h, seen by one thread.
class FiberBlock {
 public:
  FiberBlock(Fibers& fibers, const Grid& grid, int64_t index, int thread)
      : fibers_(fibers), threads_(grid.threads), index_(index), thread_(thread) {}

  [[nodiscard]] int64_t index() const { return index_; }
  [[nodiscard]] int thread() const { return thread_; }
  [[nodiscard]] int threads() const { return threads_; }
  void sync() const { fibers_.sync(); }
  template <class T>
  T exchange(T value, int mask) const {
    static_assert(sizeof(T) <= sizeof(double));
    std::memcpy(&fibers_.exchanged(thread_), &value, sizeof value);
    fibers_.sync_warp(thread_);
    T other{};
    std::memcpy(&other, &fibers_.exchanged(thread_ ^ mask), sizeof other);
    fibers_.sync_warp(thread_);
    return other;
  }
  [[nodiscard]] void* shared() const { return fibers_.shared(); }
  void wait_for_earlier() const {}

 private:
  Fibers& fibers_;
  int threads_;
  int64_t index_;
  int thread_;
};

/// Launches kernels on the CPU, blocks in order, the fibers of each in order or reversed.
struct FiberLaunch {
  bool is_reversed = false;
  std::atomic<int>* launches = nullptr;  ///< if set, counts them

  template <class Kernel, class... Arguments>
  void operator()(const Kernel& kernel, const Grid& grid, const Arguments&... arguments) const {
    if (grid.blocks == 0) return;
    if (launches != nullptr) ++*launches;
    Fibers fibers(grid, is_reversed);
    for (int64_t index = 0; index < grid.blocks; ++index) {
      fibers.run(
          [&](int thread) { kernel(FiberBlock(fibers, grid, index, thread), arguments...); });
    }
  }
};

}  // namespace cleave::test
