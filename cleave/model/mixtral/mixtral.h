#pragma once
#include <vector>

#include "cleave/model/decoder/config.h"

namespace cleave::inline model {

/// The config.json of MixtralForCausalLM: Mistral with experts in every block. Throws
/// Error(kFormat) naming key, value, range and byte.
DecoderConfig mixtral_config(const Json& json);

/// mixtral-tiny and mixtral-8x7b.
std::vector<Preset> mixtral_presets();

}  // namespace cleave::inline model
