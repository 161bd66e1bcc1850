#include "cleave/model/families.h"

namespace cleave::inline model {

DecoderConfig qwen3_config(const Json& json) {
  DecoderConfig c = read_decoder(json, {.positions = 32768, .kv_heads = 32, .head_dim = 128});
  c.qkv_bias = c.out_bias = json.bool_or("attention_bias", false);
  c.qk_norm = QkNorm::kEachHead;
  read_qwen_windows(json, c);
  refuse_setting(json, "mlp_bias");
  return c;
}

std::vector<Preset> qwen3_presets() {
  return {{.name = "qwen3-0.6b", .config_json = R"({
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 151936,
    "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "attention_bias": false,
    "use_sliding_window": false, "sliding_window": null, "max_window_layers": 28,
    "hidden_act": "silu", "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
    "tie_word_embeddings": true, "initializer_range": 0.02})"}};
}

}  // namespace cleave::inline model
