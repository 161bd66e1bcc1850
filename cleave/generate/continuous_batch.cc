#include "cleave/generate/continuous_batch.h"

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <utility>

#include "cleave/base/philox.h"
#include "cleave/generate/decoder.h"
#include "cleave/generate/lengths.h"
#include "cleave/generate/processors.h"
#include "cleave/generate/scores.h"
#include "cleave/generate/search.h"

namespace cleave::inline generation {
namespace {

/// Waiting prompts start together once 1 / kStartShare of the batch is free, because each start
/// reads all weights once more and copies the cache.
constexpr int64_t kStartShare = 8;

/// The cache of sequences that run together: each has room for as many ids as the longest. Padding
/// at most doubles the memory of the cache, unless the cache is no larger than that of
/// max_sequences sequences of kShortRow ids.
class CacheRows {
 public:
  explicit CacheRows(int64_t max_sequences) : free_(max_sequences * kShortRow) {}
  /// Whether `count` sequences of `length` ids may run with the others.
  [[nodiscard]] bool takes(int64_t length, int64_t count) const {
    const int64_t padded = (num_rows_ + count) * std::max(longest_, length);
    return padded <= std::max(2 * (num_ids_ + count * length), free_);
  }
  void add(int64_t length, int64_t count) {
    longest_ = std::max(longest_, length);
    num_rows_ += count;
    num_ids_ += count * length;
  }

 private:
  static constexpr int64_t kShortRow = 2048;
  int64_t free_, longest_ = 0, num_rows_ = 0, num_ids_ = 0;
};

}  // namespace

class ContinuousBatch::Rows {
 public:
  Rows(Model& model, const Axis& tp, GenerateSettings settings);
  int64_t add(Ids prompt, OnToken on_token);
  std::vector<FinishedPrompt> step();
  [[nodiscard]] bool is_idle() const { return rows_.empty() && waiting_.empty(); }

 private:
  /// A sequence in progress.
  struct Row {
    int64_t prompt = 0;
    int64_t sequence = 0;  // of the prompt
    Ids ids{};             // of the prompt and new
    Ids new_ids{};
    double log_prob = 0;
    int64_t last_id = 0;  // also after the end
    bool is_done = false;
  };
  struct Ended {
    int64_t sequence = 0;
    Sequence result;
  };
  struct Prompt {
    Ids ids{};
    OnToken on_token{};
    int64_t most_new = 0;  // ids of a sequence
    std::vector<Ended> ended{};
  };

  [[nodiscard]] bool starts_prompts() const;
  void start_prompts();
  void continue_rows();
  /// Removes ended rows if that saves enough work to copy the cache.
  void drop_ended_rows();
  [[nodiscard]] std::vector<int64_t> running_rows() const;
  [[nodiscard]] CacheRows running_cache() const;
  /// How many ids the running rows may still get at most.
  [[nodiscard]] int64_t most_steps(const std::vector<Row>& rows) const;
  [[nodiscard]] std::vector<Choice> choose(const Scores& raw, const std::vector<Row>& rows) const;
  /// How the next tokens of rows_ are chosen, without processors.
  [[nodiscard]] Chooser chooser() const;
  /// The random numbers of the rows' next token, or of the one after it (1).
  [[nodiscard]] std::vector<double> uniforms(const std::vector<Row>& rows, int64_t ahead) const;
  /// Appends the choices to the rows.
  void accept(const std::vector<Choice>& choices, std::vector<Row>& rows);
  /// Notes the result of a row, and of its prompt if it is the last one.
  void end(const Row& row);

  Model& model_;
  Axis tp_;
  GenerateSettings settings_;
  std::map<int64_t, Prompt> prompts_;  // waiting and running
  std::deque<int64_t> waiting_;
  int64_t num_added_ = 0;
  std::optional<Decoder> decoder_;        // of rows_; none before the first prompt
  std::vector<Row> rows_;                 // running, and ended ones that are not removed yet
  std::vector<FinishedPrompt> finished_;  // in this step
};

ContinuousBatch::Rows::Rows(Model& model, const Axis& tp, GenerateSettings settings)
    : model_(model), tp_(tp), settings_(std::move(settings)) {
  check_settings(settings_);
  CLEAVE_CHECK(settings_.num_beams == 1, Code::kUsage, "num_beams=", settings_.num_beams,
               ": a continuous batch has no beam search; call generate()");
}

int64_t ContinuousBatch::Rows::add(Ids prompt, OnToken on_token) {
  const int64_t index = num_added_;
  const int64_t room = check_prompt(prompt, settings_.first_prompt + index + 1, model_.facts());
  prompts_[index] = {.ids = std::move(prompt),
                     .on_token = std::move(on_token),
                     .most_new = std::min(settings_.max_new_tokens, room)};
  waiting_.push_back(index);
  ++num_added_;
  return index;
}

std::vector<FinishedPrompt> ContinuousBatch::Rows::step() {
  if (settings_.before_pass && !is_idle()) settings_.before_pass();
  // Cheaper than NoGradGuard: libtorch does not track versions of views.
  const c10::InferenceMode inference;
  if (starts_prompts()) {
    start_prompts();
  } else if (!rows_.empty()) {
    continue_rows();
  }
  if (running_rows().empty()) {
    rows_.clear();
    decoder_.reset();  // frees its cache
  }
  return std::exchange(finished_, {});
}

bool ContinuousBatch::Rows::starts_prompts() const {
  if (waiting_.empty()) return false;
  const auto num_running = static_cast<int64_t>(running_rows().size());
  if (num_running == 0) return true;
  if (!decoder_->takes_others()) return false;
  const int64_t copies = settings_.num_return_sequences;
  const int64_t wanted = std::min(static_cast<int64_t>(waiting_.size()) * copies,
                                  std::max<int64_t>(1, settings_.max_sequences / kStartShare));
  const int64_t next = std::ssize(prompts_.at(waiting_.front()).ids);
  return settings_.max_sequences - num_running >= std::max(wanted, copies) &&
         running_cache().takes(next, copies);
}

void ContinuousBatch::Rows::start_prompts() {
  const int64_t copies = settings_.num_return_sequences;
  const std::vector<int64_t> kept = running_rows();
  const int64_t room = settings_.max_sequences - static_cast<int64_t>(kept.size());
  // More sequences per prompt than fit run as well, one prompt at a time.
  const auto count = static_cast<size_t>(std::max<int64_t>(1, room / copies));
  std::vector<Ids> prompts;
  std::vector<Row> fresh;
  std::deque<int64_t> others;  // of the next `count`: they start in the next steps
  Lengths lengths;
  CacheRows cache = running_cache();
  for (size_t i = 0; i < count && !waiting_.empty(); ++i) {
    const int64_t index = waiting_.front();
    const Ids& ids = prompts_.at(index).ids;
    // The prompts behind it wait too. Otherwise it would wait until they end.
    if (!cache.takes(std::ssize(ids), copies)) break;
    waiting_.pop_front();
    if (!lengths.add(ids.size())) {
      others.push_back(index);
      continue;
    }
    cache.add(std::ssize(ids), copies);
    prompts.push_back(ids);
    for (int64_t s = 0; s < copies; ++s) {
      fresh.push_back({.prompt = index, .sequence = s, .ids = ids});
    }
  }
  waiting_.insert(waiting_.begin(), others.begin(), others.end());
  std::vector<Row> rows;
  rows.reserve(kept.size());
  for (const int64_t r : kept) rows.push_back(std::move(rows_[static_cast<size_t>(r)]));
  Decoder decoder(model_, tp_, prompts, most_steps(fresh));
  accept(choose(decoder.prefill(copies), fresh), fresh);
  rows.insert(rows.end(), fresh.begin(), fresh.end());
  rows_ = std::move(rows);
  if (kept.empty()) {
    decoder_.emplace(std::move(decoder));
  } else {
    decoder_->join(kept, &decoder, most_steps(rows_));
  }
}

void ContinuousBatch::Rows::continue_rows() {
  drop_ended_rows();
  Ids next;
  for (const Row& row : rows_) next.push_back(row.last_id);
  // A device does not know the earlier tokens.
  accept(has_processors(settings_) ? choose(decoder_->step(next), rows_)
                                   : decoder_->step_chosen(next, chooser(), most_steps(rows_) == 1),
         rows_);
}

Chooser ContinuousBatch::Rows::chooser() const {
  Chooser out{.on_host = [this](const Scores& scores) { return choose(scores, rows_); }};
  if (settings_.do_sample) {
    out.sampling = {
        .temperature = settings_.temperature, .top_k = settings_.top_k, .top_p = settings_.top_p};
    out.uniforms = [this](int64_t ahead) { return uniforms(rows_, ahead); };
  }
  return out;
}

std::vector<double> ContinuousBatch::Rows::uniforms(const std::vector<Row>& rows,
                                                    int64_t ahead) const {
  const uint64_t key = stream_key(settings_.seed, "sample");
  std::vector<double> out;
  for (const Row& row : rows) {
    const int64_t element =
        (settings_.first_prompt + row.prompt) * settings_.num_return_sequences + row.sequence;
    out.push_back(uniform_number(key, static_cast<uint64_t>(element),
                                 row.new_ids.size() + static_cast<uint64_t>(ahead)));
  }
  return out;
}

void ContinuousBatch::Rows::drop_ended_rows() {
  const std::vector<int64_t> kept = running_rows();
  if (2 * kept.size() > rows_.size() || !decoder_->takes_others()) return;
  std::vector<Row> rows;
  rows.reserve(kept.size());
  for (const int64_t r : kept) rows.push_back(std::move(rows_[static_cast<size_t>(r)]));
  rows_ = std::move(rows);
  decoder_->join(kept, nullptr, most_steps(rows_));
}

std::vector<int64_t> ContinuousBatch::Rows::running_rows() const {
  std::vector<int64_t> out;
  for (size_t r = 0; r < rows_.size(); ++r) {
    if (!rows_[r].is_done) out.push_back(static_cast<int64_t>(r));
  }
  return out;
}

CacheRows ContinuousBatch::Rows::running_cache() const {
  CacheRows out(settings_.max_sequences);
  for (const int64_t r : running_rows()) {
    out.add(std::ssize(rows_[static_cast<size_t>(r)].ids), 1);
  }
  return out;
}

int64_t ContinuousBatch::Rows::most_steps(const std::vector<Row>& rows) const {
  int64_t most = 0;
  for (const Row& row : rows) {
    if (row.is_done) continue;
    most =
        std::max(most, prompts_.at(row.prompt).most_new - static_cast<int64_t>(row.new_ids.size()));
  }
  return most;
}

std::vector<Choice> ContinuousBatch::Rows::choose(const Scores& raw,
                                                  const std::vector<Row>& rows) const {
  Scores scores = raw;
  if (has_processors(settings_) || settings_.do_sample) scores = raw.copy();
  if (has_processors(settings_)) {
    std::vector<Ids> ids;
    ids.reserve(rows.size());
    for (const Row& row : rows) ids.push_back(row.ids);
    apply_processors(scores, ids, settings_);
  }
  if (!settings_.do_sample) return best_choices(scores, raw);
  warp(scores, settings_, 1);
  return sampled_choices(scores, raw, uniforms(rows, 0));
}

void ContinuousBatch::Rows::accept(const std::vector<Choice>& choices, std::vector<Row>& rows) {
  for (size_t r = 0; r < rows.size(); ++r) {
    Row& row = rows[r];
    const auto [id, log_prob] = choices[r];
    row.last_id = id;  // ended rows continue, and their results are ignored
    if (row.is_done) continue;
    row.ids.push_back(id);
    row.new_ids.push_back(id);
    row.log_prob += log_prob;
    const Prompt& prompt = prompts_.at(row.prompt);
    if (prompt.on_token) prompt.on_token(row.prompt, row.sequence, id);
    row.is_done = ends_sequence(prompt.ids, row.new_ids, prompt.most_new, settings_);
    if (row.is_done) end(row);
  }
}

void ContinuousBatch::Rows::end(const Row& row) {
  Prompt& prompt = prompts_.at(row.prompt);
  prompt.ended.push_back(
      {.sequence = row.sequence,
       .result = {.ids = row.new_ids,
                  .score = score_of(row.log_prob, row.new_ids.size(), settings_)}});
  if (static_cast<int64_t>(prompt.ended.size()) < settings_.num_return_sequences) return;
  // Sequences that compare equal stay in the order in which they began.
  std::sort(prompt.ended.begin(), prompt.ended.end(), [](const Ended& a, const Ended& b) {
    return a.result.score != b.result.score ? a.result.score > b.result.score
                                            : a.sequence < b.sequence;
  });
  FinishedPrompt& done =
      finished_.emplace_back(FinishedPrompt{.prompt = row.prompt, .sequences = {}});
  for (Ended& ended : prompt.ended) done.sequences.push_back(std::move(ended.result));
  prompts_.erase(row.prompt);
}

ContinuousBatch::ContinuousBatch(Model& model, const Axis& tp, GenerateSettings settings)
    : rows_(std::make_unique<Rows>(model, tp, std::move(settings))) {}

ContinuousBatch::~ContinuousBatch() = default;

int64_t ContinuousBatch::add(Ids prompt, OnToken on_token) {
  return rows_->add(std::move(prompt), std::move(on_token));
}

std::vector<FinishedPrompt> ContinuousBatch::step() {
  return rows_->step();
}

bool ContinuousBatch::is_idle() const {
  return rows_->is_idle();
}

}  // namespace cleave::inline generation
