#pragma once
#include "cleave/model/decoder/config.h"

namespace cleave {

/// The config.json of Qwen3MoeForCausalLM: Qwen3 with experts in the blocks that
/// decoder_sparse_step and mlp_only_layers name. Throws Error(kFormat) naming key, value, range and
/// byte.
DecoderConfig qwen3_moe_config(const Json& json);

}  // namespace cleave
