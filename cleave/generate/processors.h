#pragma once
#include <span>

#include "cleave/generate/scores.h"
#include "cleave/generate/settings.h"

namespace cleave::inline generation {

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

/// Prepares scores for sampling, as transformers' warpers do and in the same order: divides them by
/// the temperature, then forbids (score -infinity) tokens outside of the top_k best (ties with the
/// k-th stay), then tokens outside of the smallest set of likeliest tokens whose probability
/// reaches top_p. At least `least_kept` tokens of a row stay. In place. Collective.
///
/// The vocabulary is not gathered. top_k: each rank shares its k best scores, which determine the
/// k-th. top_p: each rank shares its best candidates, 64 first and four times as many each round,
/// until candidates that no rank can outbid reach the mass. Exact; one round is nearly always
/// enough.
void warp(const Scores& scores, const GenerateSettings& settings, int64_t least_kept);

}  // namespace cleave::inline generation
