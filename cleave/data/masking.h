#pragma once
#include <cstdint>
#include <vector>

#include "cleave/data/batch.h"

namespace cleave {

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

}  // namespace cleave
