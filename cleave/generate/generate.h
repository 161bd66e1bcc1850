#pragma once
#include <vector>

#include "cleave/generate/settings.h"
#include "cleave/model/model.h"

namespace cleave::inline generation {

/// How many new ids fit after a prompt in a model with `max_positions`; 0 or less: it is too long.
[[nodiscard]] inline int64_t most_new_ids(const Ids& prompt, int64_t max_positions) {
  return max_positions - static_cast<int64_t>(prompt.size()) + 1;
}

/// Continues prompts with a model on `tp`: by greedy decoding, sampling, or beam search. Up to
/// settings.max_sequences sequences run together; those that end make room for further prompts (see
/// ContinuousBatch), with beams when all prompts of a batch have ended. `on_prompt` gets the
/// results in the order of the prompts, as soon as they are known.
///
/// Collective: all ranks call it with the same arguments and get the same result. Scores over the
/// vocabulary are not gathered; ranks exchange only their best candidates. Prompts may differ in
/// length and do not influence each other, except with longrope (see Decoder). A sequence also
/// ends, whatever max_new_tokens is, when the model has no position left: after most_new_ids() =
/// max_positions - (ids of its prompt) + 1 new ids, since the last one needs no position.
///
/// It calls the layers of Model::sequence() one by one. So FSDP must shard each of them, not the
/// model as a whole, and all data-parallel ranks make the same call.
///
/// Throws Error(kUsage) for inconsistent settings or an empty prompt, Error(kShape) for an id
/// outside the vocabulary or a prompt longer than the model's positions.
Generation generate(Model& model, const Axis& tp, const std::vector<Ids>& prompts,
                    const GenerateSettings& settings, const OnToken& on_token = {},
                    const OnPrompt& on_prompt = {});

}  // namespace cleave::inline generation
