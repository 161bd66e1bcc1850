#pragma once
#include "cleave/model/decoder/config.h"

namespace cleave {

/// The config.json of Qwen3ForCausalLM. Queries and keys have a norm of
/// each head. Throws Error(kFormat) naming key, value, range and byte.
DecoderConfig qwen3_config(const Json& json);

}  // namespace cleave
