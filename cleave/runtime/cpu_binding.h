#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <sched.h>
#include <vector>

#include "cleave/comm/api/world.h"

namespace cleave::inline runtime {

/// Writes the CPUs that the calling thread may run on to a set of `num_bytes`, like
/// sched_getaffinity(): negative with errno on failure, EINVAL if the set is too small.
using GetAffinity = std::function<int(size_t num_bytes, cpu_set_t* set)>;

/// The CPUs that the calling thread may run on; CPUs that share a core are adjacent. Throws
/// Error(kIo) if the system call fails.
std::vector<int> usable_cpus();
std::vector<int> usable_cpus(const GetAffinity& get);

/// Threads for each of `num_ranks` ranks that share `num_cpus` CPUs; at least 1. `cores` is the CPU
/// quota of their control group.
int threads_each(size_t num_cpus, int64_t num_ranks, std::optional<double> cores);

/// Binds the calling thread, and the threads that it starts later, to this rank's CPUs. The
/// destructor restores the thread's former affinity.
///
/// Ranks of one host that may run on the same CPUs take equal shares of them in rank order. A rank
/// that its launcher has bound to CPUs of its own keeps all of them.
class CpuBinding {
 public:
  /// Collective over all ranks of `world`. Binds nothing if a share would have fewer CPUs than
  /// `threads_per_rank`, which is at least 0.
  CpuBinding(World& world, int threads_per_rank);
  ~CpuBinding();
  CpuBinding(const CpuBinding&) = delete;
  CpuBinding& operator=(const CpuBinding&) = delete;

  /// Threads for this rank's work, at least 1: `threads_per_rank`, or if that is 0, one per CPU of
  /// the rank within the CPU quota of its control group (base/resource_limits.h).
  [[nodiscard]] int num_threads() const { return num_threads_; }

 private:
  std::vector<int> before_;
  int num_threads_ = 1;
};

/// Binds the calling thread, and the threads and programs that it starts later, to one CPU. Throws
/// Error(kUsage) if it may not run there.
void bind_to_cpu(int cpu);

}  // namespace cleave::inline runtime
