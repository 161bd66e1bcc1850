#pragma once
#include <array>
#include <cstdint>
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

/// The speed of passes over a working set that is read and written again and again.
struct MemorySpeed {
  double working_set = 0;  ///< bytes
  double bytes_per_s = 0;  ///< read and written
};

/// How fast one rank of a host does its own work, with its threads, while the others do the same.
struct WorkSpeed {
  std::map<MatrixWork, KindSeconds> products{};      ///< of one; copies that it needs are kOther
  std::map<AttentionWork, KindSeconds> attention{};  ///< of one
  double flops = 0;                                  ///< of a product when none was measured
  std::vector<MemorySpeed> memory{};  ///< by working set, ascending; empty: no passes
  double random_number_s = 0;         ///< of one number of dropout
  double operation_s = 0;             ///< overhead of one operation

  /// Seconds of `work`. A product or attention of other sizes than those measured has the speed of
  /// the one with the most similar sizes; passes over memory have the speed of the working set
  /// nearest to their reuse distance, and count as kOther with random numbers and overhead.
  [[nodiscard]] KindSeconds seconds_of(const OpWork& work) const;
  /// Seconds of a pass over data that was last used before much else.
  [[nodiscard]] double far_pass_s(double bytes) const;
};

/// Measures the speeds that `work` needs, for at most about a second, on the first ranks of
/// `everyone`, as many as the host has CPUs, at the same time: its 32 products with the most flops
/// and its attentions by their sizes (larger ones by a part), and passes over working sets of up to
/// `rank_bytes`, a rank's memory. `flops`: of a rank, the same on all. Collective. CPU only.
WorkSpeed measure_work(const Axis& everyone, const OpWork& work, double flops, int64_t rank_bytes);

}  // namespace cleave::inline planner
