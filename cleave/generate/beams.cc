#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "cleave/base/philox.h"
#include "cleave/generate/processors.h"
#include "cleave/generate/search.h"

// As in transformers 5. Each round, for each prompt separately:
//  1. Of all continuations of all beams, take the K with the best sum of log-probabilities, or
//     sample K without replacement. K is max(2, 1 + number of end ids) times num_beams, so that at
//     least num_beams of them do not end.
//  2. The best num_beams of those that do not end become the running beams.
//  3. Those among the first num_beams that end join the finished sequences, with their score
//     (sum / length^length_penalty). The best num_beams finished sequences are kept.
//  4. The prompt is done by the rule of EarlyStopping, or when no beam can continue.
// If fewer sequences finished than are wanted, running beams fill in with the score -1e9.

namespace cleave::inline generation {
namespace {

constexpr float kExcluded = -1e9F;  // the score of a beam that does not count
constexpr float kForbidden = -std::numeric_limits<float>::infinity();

/// A continuation of a beam.
struct Step {
  float log_prob = 0;  // of all new ids
  size_t beam = 0;     // the beam that it continues
  int64_t id = 0;
  bool is_end = false;
};

struct Beam {
  Ids new_ids;
  float log_prob = kExcluded;
};

/// The beams of one prompt.
struct PromptBeams {
  std::vector<Beam> running;       // num_beams, best first
  std::vector<Sequence> finished;  // at most num_beams, best first
  std::vector<int64_t> from;       // the previous beam of each running one
  bool is_done = false;
};

Ids with(const Ids& ids, int64_t id) {
  Ids out = ids;
  out.push_back(id);
  return out;
}

std::vector<Ids> ids_of(const std::vector<PromptBeams>& all, const std::vector<Ids>& prompts) {
  std::vector<Ids> out;
  for (size_t p = 0; p < all.size(); ++p) {
    for (const Beam& beam : all[p].running) {
      Ids& ids = out.emplace_back(prompts[p]);
      ids.insert(ids.end(), beam.new_ids.begin(), beam.new_ids.end());
    }
  }
  return out;
}

/// Replaces the model's scores by the sum of log-probabilities of each continuation.
void to_sums(const Scores& scores, const std::vector<PromptBeams>& all, const Search& search,
             int64_t least_kept) {
  const std::vector<double> log_sums = log_sum_exp(scores);
  for (int64_t r = 0; r < scores.num_rows(); ++r) {
    // In double: as floats, large logits would lose the differences between them.
    const double log_sum = log_sums[static_cast<size_t>(r)];
    for (float& score : scores.row(r)) {
      score = static_cast<float>(static_cast<double>(score) - log_sum);
    }
  }
  if (has_processors(search.settings)) {
    apply_processors(scores, ids_of(all, search.prompts), search.settings);
  }
  if (search.settings.do_sample) warp(scores, search.settings, least_kept);
  const auto num_beams = static_cast<size_t>(search.settings.num_beams);
  for (int64_t r = 0; r < scores.num_rows(); ++r) {
    const auto row = static_cast<size_t>(r);
    const float before = all[row / num_beams].running[row % num_beams].log_prob;
    for (float& score : scores.row(r)) score += before;
  }
}

/// -log(-log(u)). Adding this noise to log-probabilities and taking the best K samples K without
/// replacement.
float gumbel(double uniform) {
  const double inside = std::max(uniform, 0x1p-53);
  return static_cast<float>(-std::log(-std::log(inside)));
}

/// A continuation of a prompt that a rank proposes. Its place is beam * V + id.
struct Proposal {
  Candidate candidate;  // score: log_prob, plus noise if sampled
  float log_prob = 0;
};

/// This rank's best K continuations of a prompt.
std::vector<Proposal> proposals_of(const Scores& scores, size_t prompt, const Search& search,
                                   uint64_t round, int64_t limit) {
  const GenerateSettings& settings = search.settings;
  const uint64_t key = stream_key(settings.seed, "sample beams");
  const auto first_row = static_cast<int64_t>(prompt) * settings.num_beams;
  const int64_t first_element = (settings.first_prompt + static_cast<int64_t>(prompt)) *
                                settings.num_beams * scores.vocab_size;
  BestCandidates best(limit);
  for (int64_t b = 0; b < settings.num_beams; ++b) {
    const auto row = scores.row(first_row + b);
    int64_t place = b * scores.vocab_size + scores.held.begin;
    for (const float sum : row) {
      float score = sum;
      if (settings.do_sample && std::isfinite(sum)) {
        const auto element = static_cast<uint64_t>(first_element + place);
        score += gumbel(uniform_number(key, element, round));
      }
      best.offer({score, place++});
    }
  }
  std::vector<Proposal> out;
  for (const Candidate& candidate : best.sorted()) {
    const int64_t beam = candidate.place / scores.vocab_size;
    const int64_t column = candidate.place % scores.vocab_size - scores.held.begin;
    out.push_back({candidate, scores.row(first_row + beam)[static_cast<size_t>(column)]});
  }
  return out;
}

/// The K best (or sampled) continuations of every prompt, in order; the same on all ranks.
std::vector<std::vector<Step>> best_steps(const Scores& scores, const Search& search,
                                          uint64_t round, int64_t limit) {
  std::vector<double> mine;
  const size_t num_prompts = search.prompts.size();
  for (size_t p = 0; p < num_prompts; ++p) {
    const auto proposals = proposals_of(scores, p, search, round, limit);
    for (size_t i = 0; i < static_cast<size_t>(limit); ++i) {
      const bool is_there = i < proposals.size();
      const Proposal proposal = is_there ? proposals[i] : Proposal{.candidate = {0, -1}};
      mine.insert(mine.end(), {static_cast<double>(proposal.candidate.score),
                               static_cast<double>(proposal.candidate.place),
                               static_cast<double>(proposal.log_prob)});
    }
  }
  const auto all = gathered(scores, std::move(mine), "generate beams");
  const size_t width = 3 * static_cast<size_t>(limit);
  std::vector<std::vector<Step>> out(num_prompts);
  for (size_t p = 0; p < num_prompts; ++p) {
    std::vector<Proposal> merged;
    for (const auto& of_rank : all) {
      for (size_t i = p * width; i < (p + 1) * width && of_rank[i + 1] >= 0; i += 3) {
        merged.push_back({{static_cast<float>(of_rank[i]), static_cast<int64_t>(of_rank[i + 1])},
                          static_cast<float>(of_rank[i + 2])});
      }
    }
    std::sort(merged.begin(), merged.end(), [](const Proposal& a, const Proposal& b) {
      return is_better(a.candidate, b.candidate);
    });
    merged.resize(std::min(merged.size(), static_cast<size_t>(limit)));
    for (const Proposal& m : merged) {
      out[p].push_back({.log_prob = m.log_prob,
                        .beam = static_cast<size_t>(m.candidate.place / scores.vocab_size),
                        .id = m.candidate.place % scores.vocab_size});
    }
  }
  return out;
}

/// Makes the best num_beams continuations that do not end the running beams.
void update_running(PromptBeams& beams, const std::vector<Step>& steps, size_t num_beams) {
  std::vector<Step> order = steps;
  for (Step& step : order) {
    if (step.is_end) step.log_prob += kExcluded;
  }
  std::stable_sort(order.begin(), order.end(),
                   [](const Step& a, const Step& b) { return a.log_prob > b.log_prob; });
  std::vector<Beam> running;
  beams.from.clear();
  for (size_t b = 0; b < num_beams; ++b) {
    const Step& step = order[std::min(b, order.size() - 1)];
    running.push_back({with(beams.running[step.beam].new_ids, step.id),
                       b < order.size() ? step.log_prob : kExcluded});
    beams.from.push_back(static_cast<int64_t>(step.beam));
  }
  beams.running = std::move(running);
}

/// Adds those of the first num_beams continuations that end to the finished sequences.
void update_finished(PromptBeams& beams, const std::vector<Step>& steps, const Search& search,
                     size_t num_new) {
  const auto num_beams = static_cast<size_t>(search.settings.num_beams);
  for (size_t i = 0; i < std::min(num_beams, steps.size()); ++i) {
    const Step& step = steps[i];
    if (!step.is_end || step.log_prob <= kExcluded / 2) continue;
    beams.finished.push_back(
        {with(beams.running[step.beam].new_ids, step.id),
         score_of(static_cast<double>(step.log_prob), num_new, search.settings)});
  }
  std::stable_sort(beams.finished.begin(), beams.finished.end(),
                   [](const Sequence& a, const Sequence& b) { return a.score > b.score; });
  if (beams.finished.size() > num_beams) beams.finished.resize(num_beams);
}

/// Whether a running beam can still become better than the worst of num_beams finished sequences. A
/// missing one has the score kExcluded.
bool can_improve(const PromptBeams& beams, const Search& search, size_t num_new, size_t prompt) {
  const GenerateSettings& settings = search.settings;
  const bool is_full = beams.finished.size() == static_cast<size_t>(settings.num_beams);
  const double worst = is_full ? beams.finished.back().score : static_cast<double>(kExcluded);
  const bool at_full_length =
      settings.early_stopping == EarlyStopping::kNever && settings.length_penalty > 0;
  const size_t length = at_full_length ? static_cast<size_t>(search.most_new[prompt]) : num_new;
  const double best = score_of(static_cast<double>(beams.running[0].log_prob), length, settings);
  return best > worst;
}

/// One round of one prompt.
void advance(PromptBeams& beams, std::vector<Step>& steps, const Search& search, size_t prompt) {
  const auto num_beams = static_cast<size_t>(search.settings.num_beams);
  if (steps.front().log_prob == kForbidden) {  // then all are forbidden: keep the beams
    beams.is_done = true;
    return;
  }
  bool is_any_running = false;
  for (Step& step : steps) {
    step.is_end =
        ends_sequence(search.prompts[prompt], with(beams.running[step.beam].new_ids, step.id),
                      search.most_new[prompt], search.settings);
    is_any_running = is_any_running || !step.is_end;
  }
  const size_t num_new = beams.running[0].new_ids.size() + 1;
  update_finished(beams, steps, search, num_new);
  update_running(beams, steps, num_beams);
  const bool is_full = beams.finished.size() == num_beams;
  beams.is_done = !is_any_running || !can_improve(beams, search, num_new, prompt) ||
                  (is_full && search.settings.early_stopping == EarlyStopping::kTrue);
}

std::vector<PromptBeams> first_beams(const Search& search) {
  const auto num_beams = static_cast<size_t>(search.settings.num_beams);
  std::vector<PromptBeams> all(search.prompts.size());
  for (PromptBeams& beams : all) {
    beams.running.resize(num_beams);
    beams.running[0].log_prob = 0;  // all beams are equal at first: only one counts
    beams.from.resize(num_beams);
    std::iota(beams.from.begin(), beams.from.end(), 0);
  }
  return all;
}

/// `count` sequences that did not finish: the best running beams, else empty ones.
std::vector<Sequence> unfinished(const PromptBeams& beams, size_t count) {
  std::vector<Sequence> out;
  for (size_t i = 0; i < count; ++i) {
    const bool is_there = i < beams.running.size() && beams.running[i].log_prob > kExcluded / 2;
    out.push_back({is_there ? beams.running[i].new_ids : Ids{}, static_cast<double>(kExcluded)});
  }
  return out;
}

std::vector<std::vector<Sequence>> results_of(std::vector<PromptBeams>& all, const Search& search) {
  std::vector<std::vector<Sequence>> out;
  for (PromptBeams& beams : all) {
    auto& sequences = out.emplace_back(std::move(beams.finished));
    const auto wanted = static_cast<size_t>(search.settings.num_return_sequences);
    if (sequences.size() > wanted) sequences.resize(wanted);
    const std::vector<Sequence> missing = unfinished(beams, wanted - sequences.size());
    sequences.insert(sequences.end(), missing.begin(), missing.end());
  }
  return out;
}

}  // namespace

std::vector<std::vector<Sequence>> search_beams(Decoder& decoder, const Search& search,
                                                const std::function<void()>& on_first) {
  const int64_t num_beams = search.settings.num_beams;
  const auto num_ends = static_cast<int64_t>(search.settings.eos_ids.size());
  const int64_t limit = std::max<int64_t>(2, 1 + num_ends) * num_beams;
  std::vector<PromptBeams> all = first_beams(search);
  const BeforePass before_pass = search.settings.before_pass ? search.settings.before_pass : [] {};
  before_pass();
  Scores scores = decoder.prefill(num_beams);
  for (uint64_t round = 0;; ++round) {
    to_sums(scores, all, search, std::max<int64_t>(2, 1 + num_ends));
    auto steps = best_steps(scores, search, round, limit);
    if (round == 0) on_first();
    std::vector<int64_t> rows;
    Ids next;
    bool is_any_running = false;
    for (size_t p = 0; p < all.size(); ++p) {
      if (!all[p].is_done) advance(all[p], steps[p], search, p);
      is_any_running = is_any_running || !all[p].is_done;
      for (size_t b = 0; b < all[p].running.size(); ++b) {
        rows.push_back(static_cast<int64_t>(p) * num_beams + all[p].from[b]);
        const Ids& ids = all[p].running[b].new_ids;
        next.push_back(ids.empty() ? 0 : ids.back());  // empty: done, the result is ignored
      }
    }
    if (!is_any_running) break;
    before_pass();
    decoder.reorder(rows);
    scores = decoder.step(next);
  }
  return results_of(all, search);
}

}  // namespace cleave::inline generation
