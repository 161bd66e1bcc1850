#pragma once
#include <string>
#include <utility>
#include <vector>

#include "cleave/model/model.h"

namespace cleave {

/// The `top_k` largest probabilities of softmax(scores), with the index of the class or word,
/// largest first. top_k = 0: all.
std::vector<std::pair<int64_t, double>> ranked(const Tensor& scores, int64_t top_k);

/// Logits of sequences of ids, which may differ in length; they are padded and masked. Collective.
///
///   rows: B sequences   result: [B, C] of a classifier, else [B, T, V]; gathered on every rank,
///   fp32 or wider
Tensor scores_of(Model& model, const Axis& tp, const std::vector<std::vector<int64_t>>& rows);

}  // namespace cleave
