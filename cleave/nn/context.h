#pragma once
#include <cstdint>
#include <memory>

#include <ATen/core/Tensor.h>

namespace cleave {

class DeferredGradients;
class KvCache;

/// What a forward pass needs besides the activation. A small value: recompute and pipeline keep
/// copies until backward, so nothing in it needs a gradient.
///
/// Shape letters: B sequences of this micro-batch, T tokens each, S keys (T, or the cache's
/// length).
struct Context {
  at::Tensor positions{};            ///< [B, T] or [T] int64, on any device; undefined: 0..T-1
  at::Tensor key_mask{};             ///< [B, S] bool, true = may be attended to; undefined: all
  at::Tensor token_types{};          ///< [B, T] int64 segment ids (BERT); undefined: zeros
  KvCache* cache = nullptr;          ///< generation's keys and values; null while training
  bool training = false;             ///< dropout is active
  bool recompute_attention = false;  ///< scores and probabilities are computed again in backward
  uint64_t seed = 0;                 ///< of the run
  int64_t step = 0;                  ///< of the run, part of every dropout counter
  int64_t first_sample = 0;  ///< global number, within the step, of this micro-batch's first row
  /// Where Linear puts off the gradients of its weights; null: they come with backward.
  std::shared_ptr<DeferredGradients> deferred{};
  int64_t valid_tokens = 0;  ///< labels in the step's global batch; 0: those of this call
};

}  // namespace cleave
