#include "cleave/generate/generate.h"

#include <algorithm>
#include <cmath>

#include <ATen/ATen.h>

#include "cleave/base/clock.h"
#include "cleave/base/philox.h"
#include "cleave/generate/search.h"

namespace cleave::inline generation {
namespace {

void check_settings(const GenerateSettings& s) {
  CLEAVE_CHECK(s.max_new_tokens >= 1, Code::kUsage, "max_new_tokens=", s.max_new_tokens,
               " must be at least 1");
  CLEAVE_CHECK(s.num_beams >= 1 && s.num_return_sequences >= 1, Code::kUsage,
               "num_beams=", s.num_beams, " and num_return_sequences=", s.num_return_sequences,
               " must be at least 1");
  CLEAVE_CHECK(s.num_return_sequences <= s.num_beams || (s.do_sample && s.num_beams == 1),
               Code::kUsage, "num_return_sequences=", s.num_return_sequences,
               " is more than num_beams=", s.num_beams, "; raise num_beams",
               s.num_beams == 1 ? " or use do_sample" : "");
  CLEAVE_CHECK(s.temperature >= kLeastTemperature && std::isfinite(s.temperature), Code::kUsage,
               "temperature=", s.temperature, " must be at least ", kLeastTemperature,
               "; turn do_sample off for greedy decoding");
  CLEAVE_CHECK(s.top_k >= 0, Code::kUsage, "top_k=", s.top_k, " must be 0 (off) or more");
  CLEAVE_CHECK(s.top_p > 0 && s.top_p <= 1, Code::kUsage, "top_p=", s.top_p, " must be in (0, 1]");
  CLEAVE_CHECK(s.repetition_penalty > 0 && std::isfinite(s.repetition_penalty), Code::kUsage,
               "repetition_penalty=", s.repetition_penalty, " must be above 0");
  CLEAVE_CHECK(s.no_repeat_ngram_size >= 0, Code::kUsage,
               "no_repeat_ngram_size=", s.no_repeat_ngram_size, " must be 0 (off) or more");
}

/// Checks prompt `number` (from 1) and returns how many new ids fit after it.
int64_t check_prompt(const Ids& prompt, size_t number, const ModelFacts& facts) {
  CLEAVE_CHECK(!prompt.empty(), Code::kUsage, "prompt ", number, " has no ids; give at least one");
  for (const int64_t id : prompt) {
    CLEAVE_CHECK(id >= 0 && id < facts.vocab_size, Code::kShape, "prompt ", number, " has id ", id,
                 "; the model's ids are 0 to ", facts.vocab_size - 1);
  }
  const auto length = static_cast<int64_t>(prompt.size());
  CLEAVE_CHECK(length <= facts.max_positions, Code::kShape, "prompt ", number, " has ", length,
               " ids; the model has ", facts.max_positions, " positions; shorten the prompt");
  return most_new_ids(prompt, facts.max_positions);
}

}  // namespace

bool Search::is_end(size_t prompt, const Ids& new_ids) const {
  if (static_cast<int64_t>(new_ids.size()) >= most_new[prompt]) return true;
  const Ids& ends = settings.eos_ids;
  if (std::find(ends.begin(), ends.end(), new_ids.back()) != ends.end()) return true;
  return settings.ends_text && settings.ends_text(prompts[prompt], new_ids);
}

double Search::score_of(double log_prob, size_t num_new) const {
  return log_prob / std::pow(static_cast<double>(num_new), settings.length_penalty);
}

double uniform_number(uint64_t key, uint64_t element, uint64_t step) {
  const auto bits = philox(key, element, step);
  const uint64_t wide = (uint64_t{bits[0]} << 32) | bits[1];
  return static_cast<double>(wide >> 11) * 0x1p-53;
}

Generation generate(Model& model, const Axis& tp, const std::vector<Ids>& prompts,
                    const GenerateSettings& settings, const OnToken& on_token) {
  // Cheaper than NoGradGuard: libtorch does not track versions of views.
  const c10::InferenceMode inference;
  check_settings(settings);
  CLEAVE_CHECK(!prompts.empty(), Code::kUsage, "no prompt was given; give at least one");
  Search search{.prompts = prompts, .settings = settings, .most_new = {}, .start_s = monotonic_s()};
  for (size_t p = 0; p < prompts.size(); ++p) {
    const auto number = static_cast<size_t>(settings.first_prompt) + p + 1;
    search.most_new.push_back(
        std::min(settings.max_new_tokens, check_prompt(prompts[p], number, model.facts())));
  }
  const int64_t most_new = *std::max_element(search.most_new.begin(), search.most_new.end());
  Decoder decoder(model, tp, prompts, most_new);
  return settings.num_beams > 1 ? search_beams(decoder, search)
                                : continue_sequences(decoder, search, on_token);
}

}  // namespace cleave::inline generation
