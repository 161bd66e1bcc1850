#pragma once
#include <memory>
#include <vector>

#include "cleave/model/decoder/config.h"

namespace cleave::inline model {

class Model;
struct Preset;

/// The config.json of Olmo2ForCausalLM. Norms follow attention and MLP;
/// queries and keys have a norm over all heads. Throws Error(kFormat) naming key, value, range and
/// byte.
DecoderConfig olmo2_config(const Json& json);

/// A OLMo 2 without memory from its config.json.
std::unique_ptr<Model> make_olmo2(const Json& config);

/// olmo2-1b.
std::vector<Preset> olmo2_presets();

}  // namespace cleave::inline model
