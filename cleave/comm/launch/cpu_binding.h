#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <sched.h>
#include <vector>

#include "cleave/comm/api/world.h"

namespace cleave {

/// Writes the processors that the calling thread may run on into a set of `num_bytes`, as
/// sched_getaffinity does: negative with errno where it cannot, EINVAL for a set that is too small.
using GetAffinity = std::function<int(size_t num_bytes, cpu_set_t* set)>;

/// The processors that the calling thread may run on; those that share a core lie side by side.
/// Throws Error(kIo) when the system does not say.
std::vector<int> usable_cpus();
std::vector<int> usable_cpus(const GetAffinity& get);

/// Threads for each of `num_ranks` ranks that share so many processors, of which a control group
/// may let them use `cores` at a time; at least 1.
int threads_each(size_t num_cpus, int64_t num_ranks, std::optional<double> cores);

/// Keeps the calling thread, and the threads that it starts later, to this rank's own processors
/// for as long as it lives; then the thread may run where it could before.
///
/// Ranks of one host that may run on the same processors take equal shares of them, in the ranks'
/// order. A rank that may run where no other may, because its launcher has bound it, has all of
/// those.
class CpuBinding {
 public:
  /// Collective over all ranks of `world`. Nothing is kept to where a share would be less than
  /// `threads_per_rank`, which is at least 0.
  CpuBinding(World& world, int threads_per_rank);
  ~CpuBinding();
  CpuBinding(const CpuBinding&) = delete;
  CpuBinding& operator=(const CpuBinding&) = delete;

  /// Threads for this rank's work, at least 1: `threads_per_rank`, or for 0 one on each of its
  /// processors, as many of them as its control group lets it use (base/group_limits.h).
  [[nodiscard]] int num_threads() const { return num_threads_; }

 private:
  std::vector<int> before_;
  int num_threads_ = 1;
};

/// Keeps the calling thread, and the threads and programs that it starts later, on one processor.
/// Throws Error(kUsage) when it may not run there.
void bind_to_cpu(int processor);

}  // namespace cleave
