#pragma once
#include "cleave/layout/dtensor.h"

namespace cleave {

struct CrossEntropyOptions {
  enum class Reduction : uint8_t { kNone, kSum, kMean } reduction = Reduction::kMean;
  int64_t ignore_index = -100;
  double label_smoothing = 0;  ///< in [0, 1]
  /// How smoothing spreads: over all classes (torch's F.cross_entropy) or over the others only
  /// (NeMo's and Megatron's, s = a V / (V - 1)).
  enum class Smoothing : uint8_t { kTorch, kNemo } smoothing = Smoothing::kTorch;
  int64_t valid_tokens = 0;  ///< what a mean divides by; 0: the labels of this call
};

/// Cross entropy of class indices, also over logits whose classes are split: nothing is gathered,
/// two small collectives cross (a maximum; sums packed in one).
///
///   logits [.., V] Replicate or Shard(-1), uneven and empty shards too; not changed
///   labels [..] int64, the same on every rank; ignore_index counts as 0
///   result [..] or one number, Replicate, fp32 or wider
///
/// Throws Error(kShape) for a label outside [0, V) or another layout, Error(kUsage) for smoothing
/// outside [0, 1].
DTensor cross_entropy(const DTensor& logits, const Tensor& labels,
                      const CrossEntropyOptions& options = {});

/// Labels of a causal model from those of its inputs: each place gets the next one, the last -100.
/// [B, T] int64
Tensor next_token_labels(const Tensor& labels);

}  // namespace cleave
