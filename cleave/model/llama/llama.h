#pragma once
#include <memory>

#include "cleave/model/model.h"

namespace cleave {

/// A Llama without memory (LlamaForCausalLM: Llama 2, 3, 3.1 and similar) from its config.json.
/// Modules have Hugging Face's paths and, as aliases in plans, those of Meta's code and PyTorch's
/// tutorial (tok_embeddings, layers.N.attention.wq, feed_forward.w1, attention_norm, output).
std::unique_ptr<Model> make_llama(const Json& config);

/// llama-tiny, llama-15m, llama-135m, llama-1.1b, llama3-8b, llama2-7b.
std::vector<Preset> llama_presets();

}  // namespace cleave
