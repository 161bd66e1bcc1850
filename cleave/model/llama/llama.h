#pragma once
#include <memory>
#include <vector>

#include "cleave/model/decoder/config.h"

namespace cleave::inline model {

class Model;
struct Preset;

/// The config.json of LlamaForCausalLM. Throws Error(kFormat) naming key, value, range and byte.
DecoderConfig llama_config(const Json& json);

/// Meta's params.json as a Hugging Face config.json; `vocab_size` is used if the file says -1.
Json llama_config_from_meta(const Json& params, int64_t vocab_size);

/// A Llama without memory (LlamaForCausalLM: Llama 2, 3, 3.1, SmolLM2 and similar) from its
/// config.json.
std::unique_ptr<Model> make_llama(const Json& config);

/// llama-tiny, llama-15m, llama-135m, smollm2-135m, llama-1.1b, llama3-8b, llama2-7b.
std::vector<Preset> llama_presets();

}  // namespace cleave::inline model
