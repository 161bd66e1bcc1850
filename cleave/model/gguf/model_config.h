#pragma once
#include <vector>

#include "cleave/format/gguf.h"
#include "cleave/text/json.h"

namespace cleave::inline model {

/// The config.json of a GGUF file's model: sizes from the metadata, the vocabulary's size, tied
/// embeddings and biases from the tensors. Throws Error(kFormat) naming the key for a model that
/// Cleave cannot compute: another architecture, partial (but Phi-3's), longrope- or yarn-scaled
/// rotary positions.
Json config_from_gguf(const Gguf& file);

/// Adds general.* and ARCHITECTURE.* for a config.json. `name` is for people. Throws Error(kUsage)
/// for a model that llama.cpp would compute differently, Error(kFormat) for invalid values.
void add_gguf_config(GgufMetadata& metadata, const Json& config, const std::string& name);

/// The values of the tensor kGgufRopeFactors, [head_dim / 2]; empty unless the config has llama3's
/// rotary scaling.
std::vector<float> gguf_rope_factors(const Json& config);

}  // namespace cleave::inline model
