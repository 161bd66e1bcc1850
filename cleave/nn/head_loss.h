#pragma once
#include "cleave/nn/linear.h"

namespace cleave::inline nn {

/// The loss that a model's head computes itself if its logits are large (Context::head_loss): the
/// cross entropies of all labels, summed, divided by `count` and multiplied by `scale`.
struct HeadLoss {
  Tensor labels;      ///< [B, T] int64, the same on every rank; -100: no label
  int64_t count = 1;  ///< e.g. the labels of the step's global batch; 0: those here
  double scale = 1;   ///< a loss scale
  /// The cross entropy of each token instead of their sum; the logits if the head is trained.
  bool is_per_token = false;
};

/// When a head computes its loss in parts.
struct HeadLossOptions {
  /// The most bytes of a part's logits on a rank. Logits that take fewer bytes are not divided.
  int64_t most_bytes = int64_t{192} << 20;
  /// The fewest tokens per input feature for which a trained head computes the loss in parts: with
  /// fewer tokens, logits take less memory than the gradient of the weight, which exists longer.
  double least_tokens = 2;
};

/// Lets `head` compute Context::head_loss for a part of the tokens at a time if the logits of all
/// tokens would take more than `most_bytes` on a rank. Each part's logits are freed before the next
/// part is computed. The result is then the loss (Replicate, fp32 or wider), [] or [B, T] by token,
/// instead of the logits [B, T, V]. If the logits take less, or the head has an adapter, the result
/// is still the logits.
///
/// In a training step, the result is also the logits if recompute() runs the layer again.
///
/// If the result needs a gradient, forward also computes the gradients of the input and the weights
/// (they take memory from then on), since backward would have to compute the logits again. They are
/// summed over the parts in fp32 or wider. Call it before fully_shard().
///
/// The head throws Error(kUsage) for a HeadLoss without labels.
void compute_loss_in_parts(Linear& head, const HeadLossOptions& options = {});

}  // namespace cleave::inline nn
