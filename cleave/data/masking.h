#pragma once
#include <cstdint>
#include <vector>

#include "cleave/data/batch.h"

namespace cleave {

/// How tokens are hidden from a masked language model.
struct MaskingOptions {
  int64_t mask_id = 0;           ///< of [MASK]
  int64_t vocab_size = 0;        ///< of the tokenizer: random words are drawn from it
  std::vector<bool> is_special;  ///< [vocab_size] ids that are never hidden ([CLS], [SEP], ...)
  double probability = 0.15;     ///< that a token is asked for
  uint64_t seed = 0;
};

/// Hides tokens of a batch of texts: each real token that is not special is asked for with the
/// probability, one a row at least where there is any; of these 80 % become [MASK], 10 % a random
/// word and 10 % stay. Labels are the ids asked for, -100 elsewhere.
///
/// A token's fate is a function of (seed, step, row of the global batch, place), so every layout
/// hides the same. Source: Devlin et al., BERT, arXiv:1810.04805, section 3.1.
Batch masked(const Batch& batch, const MaskingOptions& options, int64_t step);

}  // namespace cleave
