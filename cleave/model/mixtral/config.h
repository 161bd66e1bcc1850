#pragma once
#include "cleave/model/decoder/config.h"

namespace cleave {

/// The config.json of MixtralForCausalLM: Mistral with experts in every block. Throws
/// Error(kFormat) naming key, value, range and byte.
DecoderConfig mixtral_config(const Json& json);

}  // namespace cleave
