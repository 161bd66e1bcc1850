#pragma once
#include "cleave/model/decoder/config.h"

namespace cleave {

/// The config.json of SmolLM3ForCausalLM. Some layers have no rotary
/// positions. Throws Error(kFormat) naming key, value, range and byte.
DecoderConfig smollm3_config(const Json& json);

}  // namespace cleave
