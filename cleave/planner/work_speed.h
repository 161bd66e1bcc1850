#pragma once
#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <vector>

#include "cleave/mesh/axis.h"
#include "cleave/torch_internals/op_clock.h"
#include "cleave/torch_internals/op_work.h"

namespace cleave::inline planner {

/// Seconds by TimeKind.
using KindSeconds = std::array<double, kNumTimeKinds>;

/// Adds `factor` times the seconds of `more`.
void add_seconds(KindSeconds& sum, const KindSeconds& more, double factor = 1);

/// The sum over all kinds.
double total_of(const KindSeconds& seconds);

/// The host's CPUs, or the quota of this process's control group.
int cpus_here();

/// The bytes of all third-level caches of this host together; 0 if the kernel does not say. `root`
/// is the folder that contains sys.
int64_t last_cache_bytes(const std::filesystem::path& root = "/");

/// The speed of passes over a working set that is read and written again and again.
struct MemorySpeed {
  double working_set = 0;  ///< bytes
  double bytes_per_s = 0;  ///< read and written
};

/// The time of one product; copies that it needs are kOther.
struct ProductSpeed {
  KindSeconds near{};  ///< its matrices were just used
  KindSeconds far{};   ///< they are no longer in the caches
};

/// How fast one rank of a host does its own work, with its threads, while the others do the same.
struct WorkSpeed {
  std::map<MatrixWork, ProductSpeed> products{};
  std::map<AttentionWork, KindSeconds> attention{};  ///< of one
  double flops = 0;                   ///< of products and attention of which none were measured
  std::vector<MemorySpeed> memory{};  ///< by working set, ascending; empty: no passes
  double random_number_s = 0;         ///< of one number of dropout
  double operation_s = 0;             ///< overhead of one operation

  /// Seconds of `work`. A product or attention of other sizes than those measured has the speed of
  /// the one with the most similar sizes; if none of its kind was measured, it has the speed
  /// `flops`: the backward pass of attention computes 2.5 times what its forward pass does, and a
  /// causal mask hides half of both. A product takes a time between near and far: with the speeds
  /// of memory at its matrices' reuse distances, as far as reading them there takes longer than
  /// reading them near. Passes over memory have the speed of the working set
  /// nearest to their reuse distance, and count as kOther with random numbers and overhead.
  [[nodiscard]] KindSeconds seconds_of(const OpWork& work) const;
  /// Seconds of a pass over data that is no longer in the caches.
  [[nodiscard]] double far_pass_s(double bytes) const;
};

/// The part of a product to measure: the batch is halved, then the largest size, until it has at
/// most `most_flops`.
MatrixWork part_of(MatrixWork shape, double most_flops);
/// The same of attention: the batch is halved, then the heads, both kinds while there are several
/// KV heads. All scores count, also those that a mask hides. One head stays whole.
AttentionWork part_of(AttentionWork shape, double most_flops);

/// Measures the speeds that `work` needs on the first ranks of `everyone`, as many as the host has
/// CPUs, at the same time: its 32 products and 32 attentions with the most flops, in
/// five rounds, products near and far (of larger ones a part, which takes 8 ms at the speed
/// `flops`; shapes with the same part share its measurement), and passes over working sets of up to
/// `rank_bytes`, a rank's memory. `flops`: of a rank, the same on all. In each round the slowest
/// rank counts, and then the median of the rounds. All ranks get the same speeds.
/// Collective. CPU only.
WorkSpeed measure_work(const Axis& everyone, const OpWork& work, double flops, int64_t rank_bytes);

}  // namespace cleave::inline planner
