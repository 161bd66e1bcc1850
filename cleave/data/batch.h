#pragma once
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "cleave/data/dataset.h"
#include "cleave/data/order.h"

namespace cleave::inline data {

/// The sequences of one step for one data-parallel rank, or a micro-batch of them: B sequences,
/// padded on the right to T tokens, the longest sequence of the step's global batch. Of a pair, the
/// chosen and the rejected sequence are neighbours.
struct Batch {
  at::Tensor ids;             ///< [B, T] int64
  at::Tensor labels;          ///< [B, T] int64, -100 where padded; [B] for classification, fp64
                              ///< for regression, [B, C] fp32 for C classes of kMultilabel
  at::Tensor attention_mask;  ///< [B, T] bool; undefined if there is no padding
  at::Tensor token_types;     ///< [B, T] int64; undefined if the data has none
  /// [B, T] int64 on the CPU, which restart at 0 where a text of the sequence begins and are 0 in
  /// padding; undefined if every sequence is one text
  at::Tensor positions{};
  int64_t first_row = 0;        ///< index of row 0 in the global batch
  int64_t rows_per_sample = 1;  ///< 2 for pairs
  /// [B] fp64: log-probabilities under the reference model; undefined without one.
  at::Tensor reference{};

  /// Rows [begin, end) of this batch.
  [[nodiscard]] Batch rows(int64_t begin, int64_t end) const;
  /// A copy on `device`; positions stay on the CPU.
  [[nodiscard]] Batch to(at::Device device) const;
  /// XXH3 of ids and labels; tensors must be on the CPU. Ranks that train on the same batch have
  /// equal hashes.
  [[nodiscard]] int64_t hash() const;
};

/// Samples [begin, end) of `step`'s batch, padded with `pad_id`. Throws Error(kFormat) if only some
/// have a class, classes, or a number.
Batch make_batch(const Dataset& dataset, const SampleOrder& order, int64_t step, int64_t begin,
                 int64_t end, int64_t pad_id = 0);

/// How tokens are masked for masked-LM training.
struct MaskingOptions {
  int64_t mask_id = 0;           ///< of [MASK]
  int64_t vocab_size = 0;        ///< of the tokenizer; random words are drawn from it
  std::vector<bool> is_special;  ///< [vocab_size] ids that are never masked ([CLS], [SEP], ...)
  double probability = 0.15;     ///< that a token is selected
  uint64_t seed = 0;
};

/// Masks tokens of a batch of texts. Each token that is neither special nor padding is selected
/// with `probability`, at least one per sequence if it has any such token. Of the selected tokens
/// 80 % become [MASK], 10 % a random word, and 10 % stay. Labels are the original ids of the
/// selected tokens, -100 elsewhere.
///
/// The result for a token is a function of (seed, step, row of the global batch, position), so
/// every layout masks the same tokens. Source: Devlin et al., BERT, arXiv:1810.04805, section 3.1.
Batch masked(const Batch& batch, const MaskingOptions& options, int64_t step);

}  // namespace cleave::inline data
