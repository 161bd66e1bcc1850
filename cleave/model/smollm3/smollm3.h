#pragma once
#include <vector>

#include "cleave/model/decoder/config.h"

namespace cleave::inline model {

/// The config.json of SmolLM3ForCausalLM. Some layers have no rotary
/// positions. Throws Error(kFormat) naming key, value, range and byte.
DecoderConfig smollm3_config(const Json& json);

/// smollm3-3b.
std::vector<Preset> smollm3_presets();

}  // namespace cleave::inline model
