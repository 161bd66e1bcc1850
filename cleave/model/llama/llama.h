#pragma once
#include <vector>

#include "cleave/model/decoder/config.h"

namespace cleave::inline model {

/// The config.json of LlamaForCausalLM: Llama 2, 3, 3.1, SmolLM2 and similar. Throws Error(kFormat)
/// naming key, value, range and byte.
DecoderConfig llama_config(const Json& json);

/// Meta's params.json as a Hugging Face config.json; `vocab_size` is used if the file says -1.
Json llama_config_from_meta(const Json& params, int64_t vocab_size);

/// llama-tiny, llama-15m, llama-135m, smollm2-135m, llama-1.1b, llama3-8b, llama2-7b.
std::vector<Preset> llama_presets();

}  // namespace cleave::inline model
