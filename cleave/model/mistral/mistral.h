#pragma once
#include <vector>

#include "cleave/model/decoder/config.h"

namespace cleave::inline model {

/// The config.json of MistralForCausalLM. All layers have the window
/// sliding_window. Throws Error(kFormat) naming key, value, range and byte.
DecoderConfig mistral_config(const Json& json);

/// mistral-7b.
std::vector<Preset> mistral_presets();

}  // namespace cleave::inline model
