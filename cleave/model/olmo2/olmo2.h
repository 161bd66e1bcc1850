#pragma once
#include <vector>

#include "cleave/model/decoder/config.h"

namespace cleave::inline model {

/// The config.json of Olmo2ForCausalLM. Norms follow attention and MLP;
/// queries and keys have a norm over all heads. Throws Error(kFormat) naming key, value, range and
/// byte.
DecoderConfig olmo2_config(const Json& json);

/// olmo2-1b.
std::vector<Preset> olmo2_presets();

}  // namespace cleave::inline model
