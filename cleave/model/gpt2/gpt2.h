#pragma once
#include <memory>

#include "cleave/model/model.h"

namespace cleave {

/// A GPT-2 without memory (GPT2LMHeadModel) from its config.json. Modules and tensors have Hugging
/// Face's names and shapes: matrices but the embeddings are stored [in, out].
std::unique_ptr<Model> make_gpt2(const Json& config);

/// gpt2-tiny, gpt2, gpt2-medium, gpt2-large, gpt2-xl.
std::vector<Preset> gpt2_presets();

}  // namespace cleave
