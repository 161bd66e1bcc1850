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

  /// Seconds of `work`. A product or attention of sizes that were not measured has the speed of the
  /// measured one with the most similar sizes. If none of its kind was measured, it has the speed
  /// `flops`; the backward pass of attention then counts 2.5 times the operations of forward, and a
  /// causal mask halves both. The time of a product lies between near and far: the slower its
  /// matrices are to read at their reuse distances, compared with reading them near, the closer it
  /// is to far. Passes over memory have the speed of the working set nearest to their reuse
  /// distance. They count as kOther, as do random numbers and overhead.
  [[nodiscard]] KindSeconds seconds_of(const OpWork& work) const;
  /// Seconds of a pass over data that is no longer in the caches.
  [[nodiscard]] double far_pass_s(double bytes) const;
};

/// The part of a product to measure: the batch is halved, then the largest size, until it has at
/// most `most_flops`.
MatrixWork part_of(MatrixWork shape, double most_flops);
/// The same for attention: the batch is halved, then the heads (KV heads too if several),
/// then queries and keys while each keeps at least 1024 and two windows. Masked scores count too.
AttentionWork part_of(AttentionWork shape, double most_flops);

/// Measures the speeds that `work` needs, at the same time on the first ranks of `everyone`, as
/// many as the host has CPUs. It measures the 32 products and the 32 attentions with the most
/// flops, products near and far, and passes over working sets of up to `rank_bytes`, a rank's
/// memory. Of a large product or attention it measures a part, which takes 8 ms at the speed
/// `flops`; shapes with the same part share its measurement. `flops`: of a rank, the same on all.
/// There are five rounds; the result is the median of the times of the slowest rank in each round.
/// All ranks get the same speeds. Collective. CPU only.
WorkSpeed measure_work(const Axis& everyone, const OpWork& work, double flops, int64_t rank_bytes);

}  // namespace cleave::inline planner
