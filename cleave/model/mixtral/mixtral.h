#pragma once
#include <memory>
#include <vector>

#include "cleave/model/decoder/config.h"

namespace cleave::inline model {

class Model;
struct Preset;

/// The config.json of MixtralForCausalLM: Mistral with experts in every block. Throws
/// Error(kFormat) naming key, value, range and byte.
DecoderConfig mixtral_config(const Json& json);

/// A Mixtral without memory from its config.json.
std::unique_ptr<Model> make_mixtral(const Json& config);

/// mixtral-tiny and mixtral-8x7b.
std::vector<Preset> mixtral_presets();

}  // namespace cleave::inline model
