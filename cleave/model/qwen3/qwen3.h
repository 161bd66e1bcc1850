#pragma once
#include <vector>

#include "cleave/model/decoder/config.h"

namespace cleave::inline model {

/// The config.json of Qwen3ForCausalLM. Queries and keys have a norm of
/// each head. Throws Error(kFormat) naming key, value, range and byte.
DecoderConfig qwen3_config(const Json& json);

/// qwen3-0.6b.
std::vector<Preset> qwen3_presets();

}  // namespace cleave::inline model
