#pragma once
#include "cleave/model/decoder/config.h"

namespace cleave {

/// The config.json of Olmo2ForCausalLM. Norms follow attention and MLP;
/// queries and keys have a norm over all heads. Throws Error(kFormat) naming key, value, range and
/// byte.
DecoderConfig olmo2_config(const Json& json);

}  // namespace cleave
