#pragma once
#include <vector>

#include "cleave/model/decoder/config.h"

namespace cleave::inline model {

/// The config.json of Qwen2ForCausalLM (Qwen2, Qwen2.5). Its q, k and v have
/// biases; layers from max_window_layers on may have a sliding window. Throws Error(kFormat) naming
/// key, value, range and byte.
DecoderConfig qwen2_config(const Json& json);

/// Sets the windows of Qwen2 and Qwen3: use_sliding_window, sliding_window, max_window_layers and
/// layer_types. Throws Error(kFormat).
void read_qwen_windows(const Json& json, DecoderConfig& c);

/// qwen2.5-0.5b.
std::vector<Preset> qwen2_presets();

}  // namespace cleave::inline model
