#include <algorithm>

#include "cleave/base/clock.h"
#include "cleave/base/philox.h"
#include "cleave/generate/processors.h"
#include "cleave/generate/search.h"

namespace cleave::inline generation {
namespace {

/// A sequence in progress.
struct Row {
  size_t prompt = 0;
  Ids ids;  // of the prompt and new
  Ids new_ids;
  double log_prob = 0;
  bool is_done = false;
};

std::vector<Row> rows_of(const Search& search) {
  std::vector<Row> rows;
  for (size_t p = 0; p < search.prompts.size(); ++p) {
    for (int64_t s = 0; s < search.settings.num_return_sequences; ++s) {
      rows.push_back({.prompt = p, .ids = search.prompts[p], .new_ids = {}});
    }
  }
  return rows;
}

std::vector<Ids> ids_of(const std::vector<Row>& rows) {
  std::vector<Ids> out;
  for (const Row& row : rows) out.push_back(row.ids);
  return out;
}

std::vector<Choice> choose(const Scores& raw, const std::vector<Row>& rows, const Search& search,
                           uint64_t step) {
  const GenerateSettings& settings = search.settings;
  Scores scores = raw;
  if (has_processors(settings) || settings.do_sample) scores = raw.copy();
  if (has_processors(settings)) apply_processors(scores, ids_of(rows), settings);
  if (!settings.do_sample) return best_choices(scores, raw);
  warp(scores, settings, 1);
  const uint64_t key = stream_key(settings.seed, "sample");
  const auto first_row =
      static_cast<uint64_t>(settings.first_prompt * settings.num_return_sequences);
  std::vector<double> uniforms;
  for (size_t r = 0; r < rows.size(); ++r) {
    uniforms.push_back(uniform_number(key, first_row + r, step));
  }
  return sampled_choices(scores, raw, uniforms);
}

Generation finished(const std::vector<Row>& rows, const Search& search) {
  Generation out;
  out.prompts.resize(search.prompts.size());
  for (const Row& row : rows) {
    out.num_tokens += static_cast<int64_t>(row.new_ids.size());
    out.prompts[row.prompt].push_back(
        {.ids = row.new_ids, .score = search.score_of(row.log_prob, row.new_ids.size())});
  }
  for (auto& sequences : out.prompts) {
    std::stable_sort(sequences.begin(), sequences.end(),
                     [](const Sequence& a, const Sequence& b) { return a.score > b.score; });
  }
  out.seconds = monotonic_s() - search.start_s;
  return out;
}

}  // namespace

Generation continue_sequences(Decoder& decoder, const Search& search, const OnToken& on_token) {
  const int64_t copies = search.settings.num_return_sequences;
  std::vector<Row> rows = rows_of(search);
  Ids next(rows.size(), 0);  // finished sequences continue with any id; the result is ignored
  double first_token_s = 0;
  Scores raw = decoder.prefill(copies);
  for (uint64_t step = 0;; ++step) {
    const std::vector<Choice> choices = choose(raw, rows, search, step);
    if (step == 0) first_token_s = monotonic_s() - search.start_s;
    bool is_any_running = false;
    for (size_t r = 0; r < rows.size(); ++r) {
      Row& row = rows[r];
      if (row.is_done) continue;
      next[r] = choices[r].id;
      row.ids.push_back(choices[r].id);
      row.new_ids.push_back(choices[r].id);
      row.log_prob += choices[r].log_prob;
      if (on_token) {
        on_token(static_cast<int64_t>(row.prompt), static_cast<int64_t>(r) % copies, next[r]);
      }
      row.is_done = search.is_end(row.prompt, row.new_ids);
      is_any_running = is_any_running || !row.is_done;
    }
    if (!is_any_running) break;
    raw = decoder.step(next);
  }
  Generation out = finished(rows, search);
  out.first_token_s = first_token_s;
  return out;
}

}  // namespace cleave::inline generation
