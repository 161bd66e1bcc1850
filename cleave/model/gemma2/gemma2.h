#pragma once
#include <vector>

#include "cleave/model/decoder/config.h"

namespace cleave::inline model {

/// The config.json of Gemma2ForCausalLM. Attention scores and logits have soft caps; every second
/// layer is full, the others have a sliding window. Throws Error(kFormat) naming key, value, range
/// and byte.
DecoderConfig gemma2_config(const Json& json);

/// Reads what Gemma 2 and 3 have in common: norms before and after attention and MLP with weights
/// around 0, a scaled embedding, query_pre_attn_scalar, the soft cap of the logits, and sliding
/// windows by layer_types; without that key, layers full_every, 2 full_every, ... are full. Throws
/// Error(kFormat).
DecoderConfig read_gemma(const Json& json, const DecoderDefaults& defaults, int64_t full_every);

/// A soft cap; `absent` is the value if the key is missing, and null is 0: no cap. Throws
/// Error(kFormat).
double read_soft_cap(const Json& json, std::string_view key, double absent);

/// gemma2-tiny, gemma2-2b.
std::vector<Preset> gemma2_presets();

}  // namespace cleave::inline model
