#pragma once
#include <cstdint>
#include <map>
#include <utility>

#include <ATen/core/Tensor.h>

namespace cleave {

using at::Tensor;

/// Keys and values of the tokens seen so far, this rank's heads, for every attention layer of a
/// model. B sequences, room for `capacity` tokens each.
class KvCache {
 public:
  explicit KvCache(int64_t capacity) : capacity_(capacity) {}

  /// Appends k and v [B, H, T, K] of a layer, kept as `type`, and returns all of its tokens so far,
  /// [B, H, S, K] views. Throws Error(kShape) when the cache is full.
  std::pair<Tensor, Tensor> extend(const void* layer, const Tensor& k, const Tensor& v,
                                   at::ScalarType type);
  /// Tokens of a layer so far.
  [[nodiscard]] int64_t length(const void* layer) const;
  /// Tokens that went through the model so far, between two of its forward passes.
  [[nodiscard]] int64_t length() const;
  /// Row i becomes what row `rows[i]` was, in every layer: beam search. rows [B] int64.
  void reorder(const Tensor& rows);
  /// Every row becomes `copies` of itself, side by side: one prompt, several continuations.
  void repeat_rows(int64_t copies);
  [[nodiscard]] int64_t capacity() const { return capacity_; }

 private:
  struct Entry {
    Tensor k, v;  // [B, H, capacity, K]
    int64_t length = 0;
  };
  int64_t capacity_;
  std::map<const void*, Entry> entries_;
};

}  // namespace cleave
