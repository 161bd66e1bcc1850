#pragma once
#include <vector>

#include "cleave/generate/settings.h"
#include "cleave/model/model.h"

namespace cleave {

/// New ids that a prompt leaves room for in a model of so many positions; 0 or less: it is too
/// long.
[[nodiscard]] inline int64_t most_new_ids(const Ids& prompt, int64_t max_positions) {
  return max_positions - static_cast<int64_t>(prompt.size()) + 1;
}

/// Continues prompts with a model whose ranks lie on `tp`: greedily, by drawing, or by beam search.
///
/// All ranks of the axis call it alike and get the same result. The vocabulary stays where it is:
/// each rank proposes a few candidates, and those alone cross. Prompts may differ in length; none
/// changes what comes of another. A sequence also ends, whatever max_new_tokens says, when the
/// model has no position left for it: after max_positions - (ids of its prompt) + 1 new ids, since
/// the last needs none. most_new_ids() says so beforehand.
///
/// Throws Error(kUsage) for settings that do not go together or an empty prompt, Error(kShape) for
/// an id outside the vocabulary or a prompt longer than the model's positions.
Generation generate(Model& model, const Axis& tp, const std::vector<Ids>& prompts,
                    const GenerateSettings& settings, const OnToken& on_token = {});

}  // namespace cleave
