#pragma once
#include "cleave/model/decoder/config.h"

namespace cleave {

/// The config.json of LlamaForCausalLM. Throws Error(kFormat) naming key, value, range and byte.
DecoderConfig llama_config(const Json& json);

/// Meta's params.json as a Hugging Face config.json; `vocab_size` is used if the file says -1.
Json llama_config_from_meta(const Json& params, int64_t vocab_size);

}  // namespace cleave
