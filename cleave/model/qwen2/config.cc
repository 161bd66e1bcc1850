#include "cleave/model/families.h"

namespace cleave::inline model {

void read_qwen_windows(const Json& json, DecoderConfig& c) {
  // Published files have a window of any value where it is off.
  const int64_t window = json.bool_or("use_sliding_window", false) ? read_window(json, 4096) : 0;
  const int64_t first = json.int_or("max_window_layers", 28, 0, kMostLayers);
  std::vector<bool> is_sliding;
  for (int64_t i = 0; i < c.facts.num_layers; ++i) is_sliding.push_back(i >= first);
  read_layer_types(json, window, is_sliding, c);
}

DecoderConfig qwen2_config(const Json& json) {
  DecoderConfig c = read_decoder(json, {.positions = 32768, .kv_heads = 32});
  c.qkv_bias = true;
  read_qwen_windows(json, c);
  refuse_setting(json, "mlp_bias");
  refuse_setting(json, "use_mrope");
  return c;
}

std::vector<Preset> qwen2_presets() {
  return {{.name = "qwen2.5-0.5b", .config_json = R"({
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "vocab_size": 151936,
    "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14,
    "num_key_value_heads": 2, "use_sliding_window": false, "sliding_window": 32768,
    "max_window_layers": 24, "hidden_act": "silu", "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6, "rope_theta": 1e6, "tie_word_embeddings": true, "initializer_range": 0.02})"}};
}

}  // namespace cleave::inline model
