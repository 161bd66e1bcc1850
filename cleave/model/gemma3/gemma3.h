#pragma once
#include <vector>

#include "cleave/model/decoder/config.h"

namespace cleave::inline model {

/// The config.json of Gemma3ForCausalLM (model_type gemma3_text). In addition to Gemma 2, queries
/// and keys have a norm of each head, and sliding layers have their own rotary positions; attention
/// scores have no soft cap. Throws Error(kFormat) naming key, value, range and byte.
DecoderConfig gemma3_config(const Json& json);

/// gemma3-tiny, gemma3-270m, gemma3-1b.
std::vector<Preset> gemma3_presets();

}  // namespace cleave::inline model
