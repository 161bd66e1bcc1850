#pragma once
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cleave/data/dataset.h"
#include "cleave/model/model.h"
#include "cleave/train/step.h"

namespace cleave::inline generation {

/// Calls `visit` with the batches of `batch_size` samples of the data, in file order and on the
/// model's device, and with the index of each batch's first sample. Throws Error(kShape) for a
/// sample longer than the model's positions.
void for_batches(Model& model, const Dataset& data, int64_t batch_size, const BatchRules& rules,
                 const std::function<void(const Batch& batch, int64_t first)>& visit);

/// Evaluates a model on `tp`: its loss on next tokens or on tokens masked by `rules`. The same on
/// all ranks. Runs `batch_size` samples at a time and calls `on_samples`
/// with the number of finished ones. Throws Error(kShape) for a sample longer than the model's
/// positions, Error(kUsage) if the data has no labels, Error(kNumerics) for a loss that is NaN or
/// infinity.
EvalSum evaluate(Model& model, const Axis& tp, const Dataset& data, int64_t batch_size,
                 const BatchRules& rules = {}, const std::function<void(int64_t)>& on_samples = {});

/// How well a model predicts the class of each sequence.
struct ClassScore {
  double loss = 0;    ///< mean cross entropy
  int64_t right = 0;  ///< sequences whose class has the largest logit
  /// Mean F1 of the classes that are in the data or predicted, as in scikit-learn.
  double macro_f1 = 0;
};

/// The score of fp64 logits [N, C] and classes [N]; N > 0.
ClassScore class_score(const Tensor& logits, const Tensor& classes);

/// The score of a classifier; otherwise as evaluate().
ClassScore evaluate_classes(Model& model, const Axis& tp, const Dataset& data, int64_t batch_size,
                            const BatchRules& rules = {},
                            const std::function<void(int64_t)>& on_samples = {});

/// How far the numbers that a model predicts are from those of the data.
struct ScoreErrors {
  double mean_squared = 0;
  double mean_absolute = 0;
  double pearson = 0;  ///< correlation; NaN if all numbers of either side are the same
};

/// Errors of fp64 numbers [N]; N > 0.
ScoreErrors score_errors(const Tensor& predicted, const Tensor& wanted);

/// The errors of a regression; otherwise as evaluate().
ScoreErrors evaluate_scores(Model& model, const Axis& tp, const Dataset& data, int64_t batch_size,
                            const BatchRules& rules = {},
                            const std::function<void(int64_t)>& on_samples = {});

/// How well a model predicts which classes each sequence has. It predicts those whose probability
/// is 0.5 or more.
struct MultilabelScore {
  double loss = 0;         ///< mean binary cross entropy of all sequences and classes
  double micro_f1 = 0;     ///< F1 of all predictions together; 0 if there is nothing to find
  double macro_f1 = 0;     ///< mean of each class's F1
  double exact_match = 0;  ///< share of sequences whose classes are all right
};

/// The score of fp64 logits and targets [N, C]; N > 0. A sequence has the classes whose target is
/// 0.5 or more.
MultilabelScore multilabel_score(const Tensor& logits, const Tensor& targets);

/// The score of a model for several classes; otherwise as evaluate().
MultilabelScore evaluate_multilabel(Model& model, const Axis& tp, const Dataset& data,
                                    int64_t batch_size, const BatchRules& rules = {},
                                    const std::function<void(int64_t)>& on_samples = {});

/// The `top_k` largest probabilities of softmax(scores), with the index of the class or word,
/// largest first. top_k = 0: all. Throws Error(kNumerics) for a score that is NaN or +infinity.
std::vector<std::pair<int64_t, double>> ranked(const Tensor& scores, int64_t top_k);

/// As ranked() for classes that do not exclude each other: the sigmoid of each score.
std::vector<std::pair<int64_t, double>> ranked_sigmoids(const Tensor& scores);

/// Sequences that run in batches of similar lengths, so that little of a batch is padding.
struct BatchWindow {
  size_t first = 0;            ///< the first row
  size_t batch_size = 1;       ///< rows of a batch; the last may have fewer
  std::vector<size_t> rows{};  ///< the rows from `first` on, shortest first

  /// The rows of each batch: parts of `rows`, which must outlive them.
  [[nodiscard]] std::vector<std::span<const size_t>> batches() const;
};

/// Divides rows of ids into windows of 16 batches in their order, so that results can be printed
/// in the order of the rows before all have run. batch_size >= 1.
std::vector<BatchWindow> windows_of(const std::vector<std::vector<int64_t>>& rows,
                                    int64_t batch_size);

/// Logits of sequences of ids, which may differ in length; they are padded and masked. Collective.
///
///   rows: B sequences   types: their token types, or none   result: [B, C] of a classifier, else
///   [B, T, V]; gathered on every rank, fp32 or wider
Tensor scores_of(Model& model, const Axis& tp, const std::vector<std::vector<int64_t>>& rows,
                 const std::vector<std::vector<int64_t>>& types = {});

}  // namespace cleave::inline generation
