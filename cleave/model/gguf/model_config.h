#pragma once
#include <string>
#include <vector>

#include "cleave/format/gguf.h"
#include "cleave/text/json.h"

namespace cleave::inline model {

/// The config.json of a GGUF file's model: sizes from the metadata, the vocabulary's size, tied
/// embeddings and biases from the tensors. Throws Error(kFormat) naming the key for a model that
/// Cleave cannot compute: another architecture, partial rotary positions (but Phi-3's), or longrope
/// (but Phi-3's).
Json config_from_gguf(const Gguf& file);

/// Adds general.* and ARCHITECTURE.* for a config.json. `name` is for people. Throws Error(kUsage)
/// for a model that llama.cpp would compute differently, Error(kFormat) for invalid values.
void add_gguf_config(GgufMetadata& metadata, const Json& config, const std::string& name);

/// A tensor with one factor for each rotary frequency.
struct GgufFactors {
  std::string name;
  std::vector<float> values;  ///< [rotated dims / 2]
};

/// The tensors of factors that a config needs: one for llama3's rotary scaling, two for longrope.
std::vector<GgufFactors> gguf_rope_factors(const Json& config);

}  // namespace cleave::inline model
