#pragma once
#include <memory>
#include <vector>

#include "cleave/model/decoder/config.h"

namespace cleave::inline model {

class Model;
struct Preset;

/// The config.json of MistralForCausalLM. All layers have the window
/// sliding_window. Throws Error(kFormat) naming key, value, range and byte.
DecoderConfig mistral_config(const Json& json);

/// A Mistral without memory from its config.json.
std::unique_ptr<Model> make_mistral(const Json& config);

/// mistral-7b.
std::vector<Preset> mistral_presets();

}  // namespace cleave::inline model
