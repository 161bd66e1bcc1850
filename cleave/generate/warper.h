#pragma once
#include "cleave/generate/scores.h"
#include "cleave/generate/settings.h"

namespace cleave {

/// Fits the scores for drawing, as transformers' warpers do, in its order: divides them by the
/// temperature, then forbids (score minus infinity) what is not among the top_k best (all that
/// equal the k-th stay) and what the top_p likeliest do not need to reach that probability
/// together. At least `least_kept` tokens of a row stay. In place.
///
/// Neither gathers the vocabulary. top_k: each rank tells its k best scores, which decide the k-th.
/// top_p: each rank tells its best candidates, 64 first and four times as many a round, until the
/// mass is reached by candidates that no rank can still outbid; exact, and one round nearly always.
void warp(const Scores& scores, const GenerateSettings& settings, int64_t least_kept);

}  // namespace cleave
