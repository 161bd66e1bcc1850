#pragma once
#include "cleave/model/decoder/config.h"

namespace cleave {

/// The config.json of Gemma3ForCausalLM (model_type gemma3_text). In addition to Gemma 2, queries
/// and keys have a norm of each head, and sliding layers have their own rotary positions; attention
/// scores have no soft cap. Throws Error(kFormat) naming key, value, range and byte.
DecoderConfig gemma3_config(const Json& json);

}  // namespace cleave
