#pragma once
#include "cleave/model/decoder/config.h"

namespace cleave {

/// The config.json of MistralForCausalLM. All layers have the window
/// sliding_window. Throws Error(kFormat) naming key, value, range and byte.
DecoderConfig mistral_config(const Json& json);

}  // namespace cleave
