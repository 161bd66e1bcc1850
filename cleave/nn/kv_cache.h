#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace cleave::inline nn {

using at::Tensor;

/// Keys or values in the form in which a cache of `type` holds them: cast, or for kChar
/// to_int8_rows.
Tensor stored_as(const Tensor& t, at::ScalarType type);

/// Keys and values of past tokens for this rank's heads, for every attention layer of a model. B
/// sequences of at most `capacity` tokens.
class KvCache {
 public:
  explicit KvCache(int64_t capacity) : capacity_(capacity) {}

  /// Appends k and v [B, H, T, K] of a layer, stored_as `type`. Returns views [B, H, S, K] of all
  /// its tokens so far (K + 4 for kChar). `layer` is the layer's path, one for each attention of
  /// the model. Throws Error(kShape) when the cache is full.
  std::pair<Tensor, Tensor> extend(std::string_view layer, const Tensor& k, const Tensor& v,
                                   at::ScalarType type);
  /// The memory of a layer's keys and values, [B, H, capacity, K]. The layer has some already.
  [[nodiscard]] std::pair<Tensor, Tensor> storage(std::string_view layer) const;
  /// Counts one token more in every layer, which was written to storage().
  void advance();
  /// The type of the keys, of which there must be some.
  [[nodiscard]] at::ScalarType type() const { return entries_.begin()->second.k.scalar_type(); }
  /// Number of tokens of a layer so far.
  [[nodiscard]] int64_t length(std::string_view layer) const;
  /// Number of tokens so far. Valid between forward passes, when all layers have the same number.
  [[nodiscard]] int64_t length() const;
  /// Whether some layer keeps its keys here, and each that does has `num_tokens`.
  [[nodiscard]] bool is_complete(int64_t num_tokens) const;
  /// For beam search: sequence i becomes a copy of the old sequence rows[i], in every layer.
  /// rows [B] int64.
  void reorder(const Tensor& rows);
  /// Repeats each sequence `copies` times in place, for several continuations of one prompt.
  void repeat_rows(int64_t copies);

  /// Sequences of a cache for joined().
  struct Part {
    const KvCache& cache;
    Tensor rows;          ///< [N] int64: which sequences, on the device of the cache
    int64_t skipped = 0;  ///< leading tokens that these sequences do not need
  };
  /// A cache of the sequences of all parts, in order. All end at the same token; those with fewer
  /// tokens than the longest begin with zeros.
  static KvCache joined(const std::vector<Part>& parts, int64_t capacity);
  [[nodiscard]] int64_t capacity() const { return capacity_; }

 private:
  struct Entry {
    Tensor k, v;  // [B, H, capacity, K]
    int64_t length = 0;
  };
  int64_t capacity_;
  std::map<std::string, Entry, std::less<>> entries_;
};

}  // namespace cleave::inline nn
