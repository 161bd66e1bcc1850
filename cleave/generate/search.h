#pragma once
#include "cleave/generate/decoder.h"
#include "cleave/generate/settings.h"

namespace cleave {

/// A checked batch of prompts on the way.
struct Search {
  const std::vector<Ids>& prompts;
  const GenerateSettings& settings;
  std::vector<int64_t> most_new;  ///< by prompt: new ids that fit the model's positions, >= 1
  double start_s = 0;             ///< on the monotonic clock

  /// Whether new ids of a prompt end there, the last of them being the newest.
  [[nodiscard]] bool is_end(size_t prompt, const Ids& new_ids) const;
  [[nodiscard]] double score_of(double log_prob, size_t num_new) const;
};

/// One id at a time, the best or a drawn one.
Generation continue_rows(Decoder& decoder, const Search& search, const OnToken& on_token);

/// Beam search as in transformers 5: of all beams' continuations the best, those that end moved
/// aside while their score is among the best.
Generation search_beams(Decoder& decoder, const Search& search);

/// A number in [0, 1) of one draw: a function of what it is given alone.
double uniform_number(uint64_t key, uint64_t element, uint64_t step);

}  // namespace cleave
