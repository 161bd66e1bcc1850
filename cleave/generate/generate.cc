#include "cleave/generate/generate.h"

#include <algorithm>
#include <cmath>

#include <ATen/ATen.h>

#include "cleave/base/clock.h"
#include "cleave/base/philox.h"
#include "cleave/generate/continuous_batch.h"
#include "cleave/generate/lengths.h"
#include "cleave/generate/search.h"

namespace cleave::inline generation {
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
  CLEAVE_CHECK(s.max_sequences >= 1, Code::kUsage, "max_sequences=", s.max_sequences,
               " must be at least 1");
  CLEAVE_CHECK(s.top_k >= 0, Code::kUsage, "top_k=", s.top_k, " must be 0 (off) or more");
  CLEAVE_CHECK(s.top_p > 0 && s.top_p <= 1, Code::kUsage, "top_p=", s.top_p, " must be in (0, 1]");
  CLEAVE_CHECK(s.repetition_penalty > 0 && std::isfinite(s.repetition_penalty), Code::kUsage,
               "repetition_penalty=", s.repetition_penalty, " must be above 0");
  CLEAVE_CHECK(s.no_repeat_ngram_size >= 0, Code::kUsage,
               "no_repeat_ngram_size=", s.no_repeat_ngram_size, " must be 0 (off) or more");
}

int64_t check_prompt(const Ids& prompt, int64_t number, const ModelFacts& facts) {
  CLEAVE_CHECK(!prompt.empty(), Code::kUsage, "prompt ", number, " has no ids; give at least one");
  for (const int64_t id : prompt) {
    CLEAVE_CHECK(id >= 0 && id < facts.vocab_size, Code::kShape, "prompt ", number, " has id ", id,
                 "; the model's ids are 0 to ", facts.vocab_size - 1, "; leave this one out");
  }
  const auto length = static_cast<int64_t>(prompt.size());
  CLEAVE_CHECK(length <= facts.max_positions, Code::kShape, "prompt ", number, " has ", length,
               " ids; the model has ", facts.max_positions, " positions; shorten the prompt");
  return most_new_ids(prompt, facts.max_positions);
}

bool ends_sequence(const Ids& prompt, const Ids& new_ids, int64_t most_new,
                   const GenerateSettings& settings) {
  if (static_cast<int64_t>(new_ids.size()) >= most_new) return true;
  const Ids& ends = settings.eos_ids;
  if (std::find(ends.begin(), ends.end(), new_ids.back()) != ends.end()) return true;
  return settings.ends_text && settings.ends_text(prompt, new_ids);
}

double score_of(double log_prob, size_t num_new, const GenerateSettings& settings) {
  return log_prob / std::pow(static_cast<double>(num_new), settings.length_penalty);
}

double uniform_number(uint64_t key, uint64_t element, uint64_t step) {
  const auto bits = philox(key, element, step);
  const uint64_t wide = (uint64_t{bits[0]} << 32) | bits[1];
  return static_cast<double>(wide >> 11) * 0x1p-53;
}

namespace {

/// Collects the results of a call of generate(), which end in any order, and reports them in order.
class Results {
 public:
  Results(size_t num_prompts, const OnPrompt& on_prompt)
      : on_prompt_(on_prompt), is_finished_(num_prompts) {
    out_.prompts.resize(num_prompts);
  }

  void note_first_token() {
    if (out_.first_token_s == 0) out_.first_token_s = monotonic_s() - start_s_;
  }

  void add(size_t prompt, std::vector<Sequence> sequences) {
    for (const Sequence& s : sequences) out_.num_tokens += static_cast<int64_t>(s.ids.size());
    out_.seconds = monotonic_s() - start_s_;
    out_.prompts[prompt] = std::move(sequences);
    is_finished_[prompt] = true;
    for (; num_reported_ < is_finished_.size() && is_finished_[num_reported_]; ++num_reported_) {
      if (on_prompt_) on_prompt_(static_cast<int64_t>(num_reported_), out_);
    }
  }

  Generation take() { return std::move(out_); }

 private:
  const OnPrompt& on_prompt_;
  std::vector<bool> is_finished_;
  size_t num_reported_ = 0;
  double start_s_ = monotonic_s();
  Generation out_;
};

void continue_prompts(ContinuousBatch& batch, const std::vector<Ids>& prompts,
                      const OnToken& on_token, Results& results) {
  for (const Ids& prompt : prompts) batch.add(prompt, on_token);
  while (!batch.is_idle()) {
    std::vector<FinishedPrompt> finished = batch.step();
    results.note_first_token();
    for (FinishedPrompt& done : finished) {
      results.add(static_cast<size_t>(done.prompt), std::move(done.sequences));
    }
  }
}

/// Where the batch that begins with prompt `first` ends: after at most `size` prompts.
size_t end_of_batch(const std::vector<Ids>& prompts, size_t first, size_t size) {
  Lengths lengths;
  size_t end = first;
  while (end < std::min(first + size, prompts.size()) && lengths.add(prompts[end].size())) ++end;
  return end;
}

/// Prompts with beams run in batches: all of a batch end before the next ones start.
void search_prompts(Model& model, const Axis& tp, const std::vector<Ids>& prompts,
                    const GenerateSettings& settings, Results& results) {
  const c10::InferenceMode inference;
  std::vector<int64_t> most_new;
  for (size_t p = 0; p < prompts.size(); ++p) {
    const int64_t number = settings.first_prompt + static_cast<int64_t>(p) + 1;
    most_new.push_back(
        std::min(settings.max_new_tokens, check_prompt(prompts[p], number, model.facts())));
  }
  const auto size =
      static_cast<size_t>(std::max<int64_t>(1, settings.max_sequences / settings.num_beams));
  size_t end = 0;
  for (size_t first = 0; first < prompts.size(); first = end) {
    end = end_of_batch(prompts, first, size);
    const std::vector<Ids> batch(prompts.begin() + static_cast<ptrdiff_t>(first),
                                 prompts.begin() + static_cast<ptrdiff_t>(end));
    GenerateSettings own = settings;
    own.first_prompt += static_cast<int64_t>(first);
    const Search search{.prompts = batch,
                        .settings = own,
                        .most_new = {most_new.begin() + static_cast<ptrdiff_t>(first),
                                     most_new.begin() + static_cast<ptrdiff_t>(end)}};
    Decoder decoder(model, tp, batch,
                    *std::max_element(search.most_new.begin(), search.most_new.end()));
    auto found = search_beams(decoder, search, [&] { results.note_first_token(); });
    for (size_t p = first; p < end; ++p) results.add(p, std::move(found[p - first]));
  }
}

}  // namespace

Generation generate(Model& model, const Axis& tp, const std::vector<Ids>& prompts,
                    const GenerateSettings& settings, const OnToken& on_token,
                    const OnPrompt& on_prompt) {
  check_settings(settings);
  CLEAVE_CHECK(!prompts.empty(), Code::kUsage, "no prompt was given; give at least one");
  Results results(prompts.size(), on_prompt);
  if (settings.num_beams > 1) {
    search_prompts(model, tp, prompts, settings, results);
  } else {
    ContinuousBatch batch(model, tp, settings);
    continue_prompts(batch, prompts, on_token, results);
  }
  return results.take();
}

}  // namespace cleave::inline generation
