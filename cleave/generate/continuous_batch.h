#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "cleave/generate/decoder.h"
#include "cleave/generate/scores.h"
#include "cleave/generate/settings.h"
#include "cleave/mesh/axis.h"
#include "cleave/model/model.h"

namespace cleave::inline generation {

/// A prompt of a ContinuousBatch whose sequences have all ended.
struct FinishedPrompt {
  int64_t prompt = 0;               ///< the index that add() returned
  std::vector<Sequence> sequences;  ///< best first
};

/// Generates for prompts that may arrive at any time, by greedy decoding or sampling. Up to
/// settings.max_sequences sequences run together; those that end make room for waiting prompts.
///
/// A prompt's result does not depend on the others, except with longrope: there the prompts that
/// start together must all end before the next ones start (see Decoder). Collective: all ranks of
/// `tp` make the same calls in the same order and get the same results. Example:
///
///     ContinuousBatch batch(model, tp, {.max_new_tokens = 100});
///     batch.add(ids);
///     while (!batch.is_idle()) {
///       for (const FinishedPrompt& done : batch.step()) print(done);
///     }
class ContinuousBatch {
 public:
  /// The model must outlive the batch. Throws Error(kUsage) for settings that generate() refuses,
  /// and for more than one beam.
  ContinuousBatch(Model& model, const Axis& tp, GenerateSettings settings);

  /// Queues a prompt. Returns its index: 0, 1, ... `on_token` gets its new ids. Throws
  /// Error(kUsage) for an empty prompt, Error(kShape) for an id outside the vocabulary or a prompt
  /// longer than the model's positions.
  int64_t add(Ids prompt, OnToken on_token = {});
  /// Either starts waiting prompts, as many as there is room for, or generates the next token of
  /// every running sequence. Returns the prompts that ended with it. Does nothing if is_idle().
  std::vector<FinishedPrompt> step();
  /// Whether no prompt waits or runs.
  [[nodiscard]] bool is_idle() const { return rows_.empty() && waiting_.empty(); }

 private:
  /// A sequence in progress.
  struct Row {
    int64_t prompt = 0;
    int64_t sequence = 0;  // of the prompt
    Ids ids{};             // of the prompt and new
    Ids new_ids{};
    double log_prob = 0;
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
  /// How many ids the running rows may still get at most.
  [[nodiscard]] int64_t most_steps(const std::vector<Row>& rows) const;
  [[nodiscard]] std::vector<Choice> choose(const Scores& raw, const std::vector<Row>& rows) const;
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

}  // namespace cleave::inline generation
