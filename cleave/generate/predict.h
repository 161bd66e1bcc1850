#pragma once
#include <string>
#include <utility>
#include <vector>

#include "cleave/model/model.h"

namespace cleave {

/// Probabilities of a row of scores, the largest first: the first `top_k` of them, with the number
/// of the class or word. 0: all.
std::vector<std::pair<int64_t, double>> ranked(const Tensor& scores, int64_t top_k);

/// Logits of rows of ids of any lengths, padded and masked for the call.
///
///   rows  B of them   result [B, C] of a classifier, else [B, T, V]; whole on every rank, fp32 or
///   wider
Tensor scores_of(Model& model, const Axis& tp, const std::vector<std::vector<int64_t>>& rows);

}  // namespace cleave
