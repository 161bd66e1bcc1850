#pragma once
#include <cstdint>
#include <memory>
#include <vector>

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
  ~ContinuousBatch();

  /// Queues a prompt. Returns its index: 0, 1, ... `on_token` gets its new ids. Throws
  /// Error(kUsage) for an empty prompt, Error(kShape) for an id outside the vocabulary or a prompt
  /// longer than the model's positions.
  int64_t add(Ids prompt, OnToken on_token = {});
  /// Either starts waiting prompts, as many as there is room for, or generates the next token of
  /// every running sequence. Returns the prompts that ended with it. Does nothing if is_idle().
  std::vector<FinishedPrompt> step();
  /// Whether no prompt waits or runs.
  [[nodiscard]] bool is_idle() const;

 private:
  class Rows;  // keeps the decoder out of the public headers
  std::unique_ptr<Rows> rows_;
};

}  // namespace cleave::inline generation
