#pragma once
#include <cstdint>

#include <ATen/core/Tensor.h>

#include "cleave/bench/timing.h"
#include "cleave/mesh/axis.h"
#include "cleave/torch_internals/op_clock.h"

namespace cleave::inline bench {

/// What the ranks of this machine reach at best, all at the same time; measured right after the
/// work that it bounds, because machines change their speed within minutes.
struct MachineLimit {
  double products_s = 0;    ///< seconds of the counted products at the best speed of each shape
  double products = 0;      ///< multiplications and additions of these products
  double all_reduce_s = 0;  ///< seconds of an all-reduce of one number; 0 for one rank
};

/// Times every shape of `products`, tensors of `type`, with all libraries at hand and adds the
/// shortest times, each as often as it is counted. Collective; no other rank waits for this one
/// within the products, so that the ranks may have different shapes.
MachineLimit measure_limit(const Axis& ranks, const ProductCounts& products, at::ScalarType type);

/// Bytes per second that all ranks together read in a plain sum, over as many bytes as `bytes` per
/// rank up to 256 MiB, so that caches help equally. The best of seven. Collective.
double memory_speed(const Axis& ranks, int64_t bytes);

/// Calls of collectives in `spent`.
int64_t collective_calls(const Spent& spent);

/// `part` of `whole` as text: "84 %".
std::string percent(double part, double whole);

}  // namespace cleave::inline bench
