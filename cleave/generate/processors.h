#pragma once
#include <span>

#include "cleave/generate/scores.h"
#include "cleave/generate/settings.h"

namespace cleave {

/// Whether apply_processors() changes anything.
bool has_processors(const GenerateSettings& settings);

/// Applies transformers' logits processors to the scores of each sequence, in the same order:
/// tokens that occurred before become less likely (repetition_penalty), tokens that would repeat an
/// n-gram are forbidden (no_repeat_ngram_size). In place, without communication.
///
///   rows[r]: prompt and new ids of sequence r, without padding
void apply_processors(const Scores& scores, std::span<const Ids> rows,
                      const GenerateSettings& settings);

/// The ids that would complete an n-gram of `size` ids that `ids` already contains; size >= 1.
Ids repeating_ids(std::span<const int64_t> ids, int64_t size);

}  // namespace cleave
