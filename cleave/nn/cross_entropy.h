#pragma once
#include "cleave/layout/dtensor.h"

namespace cleave::inline nn {

struct CrossEntropyOptions {
  enum class Reduction : uint8_t { kNone, kSum, kMean } reduction = Reduction::kMean;
  int64_t ignore_index = -100;
  double label_smoothing = 0;  ///< in [0, 1]
  /// Label smoothing over all classes (torch's F.cross_entropy), or over the other classes only
  /// (NeMo's and Megatron's, s = a V / (V - 1)).
  enum class Smoothing : uint8_t { kTorch, kNemo } smoothing = Smoothing::kTorch;
  int64_t valid_tokens = 0;  ///< divisor of the mean; 0: the labels of this call
};

/// Cross entropy of class indices. Also takes logits with sharded classes: logits are not gathered;
/// two small all-reduces suffice (a maximum, and three sums in one).
///
///   logits [.., V] Replicate or Shard(-1), also with uneven or empty shards; not modified
///   labels [..] int64, the same on every rank; positions with ignore_index have loss 0
///   result [..] or a scalar, Replicate, fp32 or wider
///
/// Throws Error(kShape) for a label outside [0, V) or another layout, Error(kUsage) for smoothing
/// outside [0, 1].
DTensor cross_entropy(const DTensor& logits, const Tensor& labels,
                      const CrossEntropyOptions& options = {});

/// Shifts labels for a causal model: each position gets the next one's label, the last -100.
/// [B, T] int64.
Tensor next_token_labels(const Tensor& labels);

}  // namespace cleave::inline nn
