#pragma once
#include <memory>
#include <vector>

#include "cleave/model/decoder/config.h"

namespace cleave::inline model {

class Model;
struct Preset;

/// The config.json of Phi3ForCausalLM (Phi-3, Phi-3.5, Phi-4). q, k and v are
/// one matrix, gate and up another. Throws Error(kFormat) naming key, value, range and byte.
DecoderConfig phi3_config(const Json& json);

/// A Phi-3, Phi-3.5 or Phi-4 without memory from its config.json.
std::unique_ptr<Model> make_phi3(const Json& config);

/// phi3-mini.
std::vector<Preset> phi3_presets();

}  // namespace cleave::inline model
