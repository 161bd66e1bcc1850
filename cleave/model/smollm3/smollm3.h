#pragma once
#include <memory>
#include <vector>

#include "cleave/model/decoder/config.h"

namespace cleave::inline model {

class Model;
struct Preset;

/// The config.json of SmolLM3ForCausalLM. Some layers have no rotary
/// positions. Throws Error(kFormat) naming key, value, range and byte.
DecoderConfig smollm3_config(const Json& json);

/// A SmolLM3 without memory from its config.json.
std::unique_ptr<Model> make_smollm3(const Json& config);

/// smollm3-3b.
std::vector<Preset> smollm3_presets();

}  // namespace cleave::inline model
