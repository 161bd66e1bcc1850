#pragma once
#include <vector>

#include "cleave/model/decoder/config.h"

namespace cleave::inline model {

/// The config.json of Phi3ForCausalLM (Phi-3, Phi-3.5, Phi-4). q, k and v are
/// one matrix, gate and up another. Throws Error(kFormat) naming key, value, range and byte.
DecoderConfig phi3_config(const Json& json);

/// phi3-mini.
std::vector<Preset> phi3_presets();

}  // namespace cleave::inline model
