#pragma once
#include <memory>

#include "cleave/model/decoder/config.h"
#include "cleave/model/model.h"

namespace cleave::inline model {

/// A decoder without memory. `json` is the config.json that `config` was read from. Modules have
/// the paths of Hugging Face's Llama and, as aliases in plans, those of Meta's code and PyTorch's
/// tutorial (tok_embeddings, layers.N.attention.wq, feed_forward.w1, attention_norm, output).
std::unique_ptr<Model> make_decoder(const Json& json, const DecoderConfig& config);

/// Sequences of more tokens have other rotary frequencies (longrope). 0: the frequencies of `model`
/// do not depend on the length, or make_decoder() did not make it.
[[nodiscard]] int64_t rotary_switch(const Model& model);

}  // namespace cleave::inline model
