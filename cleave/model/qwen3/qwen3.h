#pragma once
#include <memory>
#include <vector>

#include "cleave/model/decoder/config.h"

namespace cleave::inline model {

class Model;
struct Preset;

/// The config.json of Qwen3ForCausalLM. Queries and keys have a norm of
/// each head. Throws Error(kFormat) naming key, value, range and byte.
DecoderConfig qwen3_config(const Json& json);

/// A Qwen3 without memory from its config.json.
std::unique_ptr<Model> make_qwen3(const Json& config);

/// qwen3-0.6b.
std::vector<Preset> qwen3_presets();

}  // namespace cleave::inline model
