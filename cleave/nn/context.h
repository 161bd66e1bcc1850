#pragma once
#include <cstdint>
#include <memory>

#include <ATen/core/Tensor.h>

#include "cleave/nn/named_values.h"

namespace cleave::inline torch_internals {
class DeferredGradients;
}

namespace cleave::inline nn {

class BalanceLoss;
class KvCache;
struct HeadLoss;

/// Inputs of a forward pass other than the activation. A small value: recompute and pipeline keep
/// copies until backward, so no tensor in it may need a gradient, except in `values`.
///
/// Shape letters: B sequences in this micro-batch, T tokens each, S keys (T, or the cache's
/// length).
struct Context {
  /// [B, T] or [T] int64, on any device. If undefined, they are P..P+T-1, where P is the number of
  /// tokens in `cache`, or 0 without a cache.
  at::Tensor positions{};
  at::Tensor key_mask{};  ///< [B, S] bool, true = may be attended to; undefined: all
  /// [B, T] int64, on the device of the activations: the first key that each query of causal
  /// attention may attend to, when several texts share a sequence; undefined: 0.
  at::Tensor first_key{};
  at::Tensor token_types{};  ///< [B, T] int64 segment ids (BERT); undefined: zeros
  /// Keys and values of the tokens before these, in generation; null in training. A layer that
  /// mixes tokens reads the earlier ones here (HeadAttention does).
  KvCache* cache = nullptr;
  /// Only in a recorded step of decoding: [1] int64 on the device, the number of keys including
  /// that of the new token. The lengths of `cache` are then ignored, and `positions` [B, 1] and
  /// `first_key` [B, 1] must be given, on the device.
  at::Tensor num_keys{};
  bool training = false;             ///< dropout is active
  bool recompute_attention = false;  ///< recompute scores and probabilities in backward
  uint64_t seed = 0;                 ///< of the run
  int64_t step = 0;                  ///< of the run, part of every dropout counter
  int64_t first_sample = 0;  ///< index in the step's global batch of the first sequence here
  /// Where Linear defers its weight gradients; null: backward computes them.
  std::shared_ptr<DeferredGradients> deferred{};
  /// Where layers with experts count their tokens; null: without an auxiliary loss.
  std::shared_ptr<BalanceLoss> balance{};
  /// The loss that the head computes itself if its logits are large; null: it never does.
  std::shared_ptr<const HeadLoss> head_loss{};
  NamedValues values{};  ///< further inputs, and named outputs of earlier layers
};

}  // namespace cleave::inline nn
