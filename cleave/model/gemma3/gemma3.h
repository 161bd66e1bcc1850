#pragma once
#include <memory>
#include <vector>

#include "cleave/model/decoder/config.h"

namespace cleave::inline model {

class Model;
struct Preset;

/// The config.json of Gemma3ForCausalLM (model_type gemma3_text). In addition to Gemma 2, queries
/// and keys have a norm of each head, and sliding layers have their own rotary positions; attention
/// scores have no soft cap. Throws Error(kFormat) naming key, value, range and byte.
DecoderConfig gemma3_config(const Json& json);

/// A Gemma 3 for text without memory from its config.json.
std::unique_ptr<Model> make_gemma3(const Json& config);

/// gemma3-tiny, gemma3-270m, gemma3-1b.
std::vector<Preset> gemma3_presets();

}  // namespace cleave::inline model
