#pragma once
#include "cleave/generate/decoder.h"
#include "cleave/generate/settings.h"

namespace cleave::inline generation {

/// A batch of checked prompts with their settings.
struct Search {
  const std::vector<Ids>& prompts;
  const GenerateSettings& settings;
  std::vector<int64_t> most_new;  ///< by prompt: limit of new ids, >= 1
  double start_s = 0;             ///< on the monotonic clock

  /// Whether a sequence ends with the last of these new ids of a prompt.
  [[nodiscard]] bool is_end(size_t prompt, const Ids& new_ids) const;
  [[nodiscard]] double score_of(double log_prob, size_t num_new) const;
};

/// Greedy decoding or sampling.
Generation continue_sequences(Decoder& decoder, const Search& search, const OnToken& on_token);

/// Beam search as in transformers 5; see beams.cc.
Generation search_beams(Decoder& decoder, const Search& search);

/// A uniform random number in [0, 1): a pure function of the arguments.
double uniform_number(uint64_t key, uint64_t element, uint64_t step);

}  // namespace cleave::inline generation
