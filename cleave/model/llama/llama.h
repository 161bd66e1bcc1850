#pragma once
#include <memory>

#include "cleave/model/model.h"

namespace cleave {

/// A Llama without memory (LlamaForCausalLM: Llama 2, 3, 3.1, SmolLM2 and similar) from its
/// config.json.
std::unique_ptr<Model> make_llama(const Json& config);

/// llama-tiny, llama-15m, llama-135m, smollm2-135m, llama-1.1b, llama3-8b, llama2-7b.
std::vector<Preset> llama_presets();

}  // namespace cleave
