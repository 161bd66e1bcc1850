#pragma once
#include <memory>
#include <string>

#include "cleave/model/facts.h"
#include "cleave/nn/linear.h"

namespace cleave::inline model {

struct DecoderHeadOptions {
  double init_range = 0.02;                ///< standard deviation of the initial weights
  double soft_cap = 0;                     ///< of a language model's logits; 0: none
  std::shared_ptr<Parameter> tied_weight;  ///< of a language model, its embedding's; null: its own
};

/// The last layer of a decoder, for the task that read_decoder_task() has returned.
///
/// "lm": the output matrix, hidden states [B, T, D] to logits [B, T, V].
///
/// Other tasks: logits of classes [B, C], Replicate, from the hidden state of each sequence's last
/// token, which has seen the others (transformers' ...ForSequenceClassification). The last token is
/// the last that Context::key_mask shows, without a mask that of position T - 1. transformers takes
/// the last id other than the padding id: the same, unless a text ends with that id.
std::unique_ptr<Layer> make_decoder_head(const ModelFacts& facts, const std::string& task,
                                         const DecoderHeadOptions& options);

/// The name of that layer: "lm_head" or "score".
inline const char* head_name(const std::string& task) {
  return task == "lm" ? "lm_head" : "score";
}

}  // namespace cleave::inline model
