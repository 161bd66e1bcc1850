#pragma once
#include "cleave/generate/decoder.h"
#include "cleave/generate/settings.h"
#include "cleave/model/model.h"

namespace cleave::inline generation {

/// Throws Error(kUsage) for settings that contradict each other or are out of range.
void check_settings(const GenerateSettings& settings);
/// Checks prompt `number` (from 1) and returns how many new ids fit after it. Throws as generate().
int64_t check_prompt(const Ids& prompt, int64_t number, const ModelFacts& facts);

/// Whether a sequence of a prompt ends with the last of its new ids; `most_new` is their limit.
bool ends_sequence(const Ids& prompt, const Ids& new_ids, int64_t most_new,
                   const GenerateSettings& settings);
/// The score of a sequence: log_prob / num_new^length_penalty.
double score_of(double log_prob, size_t num_new, const GenerateSettings& settings);

/// A batch of checked prompts with their settings.
struct Search {
  const std::vector<Ids>& prompts;
  const GenerateSettings& settings;
  std::vector<int64_t> most_new;  ///< by prompt: limit of new ids, >= 1
};

/// Beam search as in transformers 5; see beams.cc. Returns the sequences of each prompt, best
/// first. Calls `on_first` when the first id of every prompt is known.
std::vector<std::vector<Sequence>> search_beams(Decoder& decoder, const Search& search,
                                                const std::function<void()>& on_first);

/// A uniform random number in [0, 1): a pure function of the arguments.
double uniform_number(uint64_t key, uint64_t element, uint64_t step);

}  // namespace cleave::inline generation
