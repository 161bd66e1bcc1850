#pragma once
#include <cstdint>

#include <ATen/core/Tensor.h>

#include "cleave/base/range.h"

namespace cleave::inline nn {

using at::Tensor;

/// Learned bias of attention scores by the distance between query and key (T5). Small distances
/// have a bucket each, larger ones share buckets of growing width; distances from `max_distance` on
/// share the last. Without a causal mask, half of the buckets are for keys after the query.
struct RelativeBiasOptions {
  int64_t num_buckets = 32;    ///< at least 2; without a causal mask a multiple of 2, at least 4
  int64_t max_distance = 128;  ///< more than the distances with a bucket each
};

/// Throws Error(kShape) for options that the struct's comments exclude.
void check_relative_bias(const RelativeBiasOptions& options, bool causal);

/// The bucket of each pair of a query position in `queries` and a key position in [0, num_keys).
/// [T, S] int64. `causal`: keys after the query, which a mask hides, have the bucket of distance 0.
/// Source: arXiv:1910.10683, section 2.1; transformers' T5Attention computes the same in fp32.
Tensor relative_buckets(const RelativeBiasOptions& options, bool causal, const Range& queries,
                        int64_t num_keys, at::Device device);

/// The biases table[bucket] of these pairs, differentiable.
///
///   table [buckets, H]   result [1, H, T, S], fp32 or wider, because its gradient is a sum over
///   all pairs of a bucket
Tensor relative_bias(const Tensor& table, const RelativeBiasOptions& options, bool causal,
                     const Range& queries, int64_t num_keys);

}  // namespace cleave::inline nn
