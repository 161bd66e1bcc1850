#pragma once
#include <cstdint>

#include <ATen/core/Tensor.h>

#include "cleave/data/dataset.h"
#include "cleave/data/order.h"

namespace cleave {

/// Rows of one step for one data-parallel rank, or one micro-batch of them. B rows, padded on the
/// right to the longest row of the step's global batch, T tokens.
struct Batch {
  at::Tensor ids;             ///< [B, T] int64
  at::Tensor labels;          ///< [B, T] int64, -100 where padded; [B] of classes
  at::Tensor attention_mask;  ///< [B, T] bool; undefined when every place is real
  at::Tensor token_types;     ///< [B, T] int64; undefined when the data has none
  int64_t first_row = 0;      ///< place of row 0 in the global batch

  /// Rows [begin, end) of it.
  [[nodiscard]] Batch rows(int64_t begin, int64_t end) const;
  /// The same on another device.
  [[nodiscard]] Batch to(at::Device device) const;
  /// XXH3 of ids and labels, on the processor: the same on all ranks that must see the same batch.
  [[nodiscard]] int64_t hash() const;
};

/// The rows [begin, end) of the global batch of `step`. `pad_id` fills ids.
Batch make_batch(const Dataset& dataset, const SampleOrder& order, int64_t step, int64_t begin,
                 int64_t end, int64_t pad_id = 0);

}  // namespace cleave
