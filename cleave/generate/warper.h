#pragma once
#include "cleave/generate/scores.h"
#include "cleave/generate/settings.h"

namespace cleave {

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

}  // namespace cleave
