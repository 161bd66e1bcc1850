#pragma once
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "cleave/base/range.h"
#include "cleave/layout/dtensor.h"

namespace cleave {

/// Scores of the next token of R sequences: this rank's part of the vocabulary, which is never
/// gathered. Ranks hold ascending parts; one may be empty.
struct Scores {
  Tensor values;       ///< [R, W] fp32, on the CPU, contiguous
  Range held;          ///< the ids of the W columns
  int64_t vocab_size;  ///< V
  Axis axis;           ///< whose ranks hold the parts; of size 1 where each rank has the whole

  /// From logits [R, 1, V], Replicate or Shard(-1). Throws Error(kShape) for another layout.
  static Scores from_logits(const DTensor& logits);

  [[nodiscard]] int64_t num_rows() const { return values.size(0); }
  /// This rank's scores of a row.
  [[nodiscard]] std::span<float> row(int64_t r) const;
  /// Whether the id is among this rank's classes.
  [[nodiscard]] bool holds(int64_t id) const { return held.begin <= id && id < held.end; }
  /// The same place with a copy of the values, to be changed.
  [[nodiscard]] Scores copy() const;
};

/// Every rank's numbers, in rank order: result[r] are those of rank r. All give as many.
std::vector<std::vector<double>> exchanged(const Axis& axis, std::vector<double> mine,
                                           std::string_view site);

/// log(sum over the vocabulary of exp(score)) of each row; the same on every rank. Throws
/// Error(kNumerics) for scores that are NaN or infinity, and for a row whose scores are all
/// -infinity.
std::vector<double> log_sum_exp(const Scores& scores);
/// The same, but -infinity for a row whose scores are all -infinity: every token is forbidden.
std::vector<double> log_sum_exp_or_nothing(const Scores& scores);

/// A token on offer for a row, or for several rows one behind the other (place = row * V + id).
struct Candidate {
  float score = 0;
  int64_t place = 0;
};

/// Higher scores first, among equal ones the lower place: the order in which tokens are preferred.
inline bool is_better(const Candidate& a, const Candidate& b) {
  return a.score != b.score ? a.score > b.score : a.place < b.place;
}

/// Keeps the best `limit` of the candidates offered to it.
class BestCandidates {
 public:
  explicit BestCandidates(int64_t limit) : limit_(static_cast<size_t>(limit)) {}
  /// Takes the candidate where it is among the best so far.
  void offer(const Candidate& candidate);
  /// Best first.
  [[nodiscard]] std::vector<Candidate> sorted() const;

 private:
  size_t limit_;
  std::vector<Candidate> heap_;  // the worst one on top
};

/// One token chosen for a row.
struct Choice {
  int64_t id = 0;
  double log_prob = 0;  ///< the model's own, whatever was done to the scores after it
};

/// The best token of each row of `scores`, the lowest id among equals; `raw` are the model's scores
/// before any change, for the log-probability.
std::vector<Choice> best_choices(const Scores& scores, const Scores& raw);

/// One token of each row, drawn from softmax(scores): row r's is where the cumulative sum in the
/// order of ids passes uniforms[r] (in [0, 1)), so that every layout draws the same.
std::vector<Choice> drawn_choices(const Scores& scores, const Scores& raw,
                                  std::span<const double> uniforms);

}  // namespace cleave
