#pragma once
#include <span>

#include "cleave/generate/scores.h"
#include "cleave/generate/settings.h"

namespace cleave {

/// Whether change_scores() would change anything.
bool has_processors(const GenerateSettings& settings);

/// What transformers' logits processors do to the scores of each row, in its order: tokens that
/// came before become less likely (repetition_penalty), tokens that would repeat a run of ids are
/// forbidden (no_repeat_ngram_size). In place, no traffic.
///
///   rows[r]: prompt and new ids of row r; padding is not among them and never counts
void change_scores(const Scores& scores, std::span<const Ids> rows,
                   const GenerateSettings& settings);

/// Ids that after `ids` would end a run of `size` ids that is in `ids` already; size >= 1.
Ids repeating_ids(std::span<const int64_t> ids, int64_t size);

}  // namespace cleave
