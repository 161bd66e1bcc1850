#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "cleave/base/range.h"
#include "cleave/layout/dtensor.h"

namespace cleave::inline generation {

/// Scores of the next token of R sequences: this rank's shard of the vocabulary. Shards are never
/// gathered. They are in ascending order of ranks; a shard may be empty.
struct Scores {
  Tensor values;       ///< [R, W] fp32, on the CPU, contiguous
  Range held;          ///< the ids of the W columns
  int64_t vocab_size;  ///< V
  Axis axis;           ///< ranks that hold the shards; size 1 if each rank has all scores
  /// If experts are shared out, the ranks that hold the same scores up to rounding. All decisions
  /// follow the scores of the first of them.
  Axis replicas{};

  /// From logits [R, 1, V], Replicate or Shard(-1). Throws Error(kShape) for another layout.
  static Scores from_logits(const DTensor& logits);

  [[nodiscard]] int64_t num_rows() const { return values.size(0); }
  /// This rank's scores of a row.
  [[nodiscard]] std::span<float> row(int64_t r) const;
  /// Whether this rank has the score of the id.
  [[nodiscard]] bool holds(int64_t id) const { return held.begin <= id && id < held.end; }
  /// A copy with its own values.
  [[nodiscard]] Scores copy() const;
};

/// Gathers numbers about scores: result[r] are those of rank r of scores.axis, the same on all
/// replicas. All ranks pass the same count. Collective over both axes.
std::vector<std::vector<double>> gathered(const Scores& scores, std::vector<double> mine,
                                          std::string_view site);

/// log(sum over the vocabulary of exp(score)) of each row; the same on every rank. Throws
/// Error(kNumerics) for a score that is NaN or +infinity, and for a row of only -infinity.
std::vector<double> log_sum_exp(const Scores& scores);
/// The same, but returns -infinity for a row of only -infinity, where every token is forbidden.
std::vector<double> log_sum_exp_or_minus_infinity(const Scores& scores);

/// A candidate token of a row: place = id; or of several rows: place = row * V + id.
struct Candidate {
  float score = 0;
  int64_t place = 0;
};

/// The order of preference: higher scores first, then lower places.
inline bool is_better(const Candidate& a, const Candidate& b) {
  return a.score != b.score ? a.score > b.score : a.place < b.place;
}

/// Keeps the best `limit` of the offered candidates.
class BestCandidates {
 public:
  explicit BestCandidates(int64_t limit) : limit_(static_cast<size_t>(limit)) {}
  /// Keeps the candidate if it is among the best so far.
  void offer(const Candidate& candidate);
  /// Best first.
  [[nodiscard]] std::vector<Candidate> sorted() const;

 private:
  size_t limit_;
  std::vector<Candidate> heap_;  // the worst candidate is on top
};

/// One token chosen for a row.
struct Choice {
  int64_t id = 0;
  double log_prob = 0;  ///< by the model's raw scores
};

/// The best token of each row of `scores`; of equal ones the lowest id. `raw` are the model's
/// original scores, for the log-probability.
std::vector<Choice> best_choices(const Scores& scores, const Scores& raw);

/// The choices that a device made: `chosen` [R, 4] of best_tokens() or sample_tokens(), on the CPU.
/// Empty if the device does not know one. Throws like log_sum_exp().
std::optional<std::vector<Choice>> choices_of(const Tensor& chosen);

/// Samples one token per row from softmax(scores): the first id at which the cumulative probability
/// exceeds uniforms[r] in [0, 1), so that every layout samples the same.
std::vector<Choice> sampled_choices(const Scores& scores, const Scores& raw,
                                    std::span<const double> uniforms);

}  // namespace cleave::inline generation
