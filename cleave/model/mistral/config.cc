#include "cleave/model/families.h"

namespace cleave::inline model {

DecoderConfig mistral_config(const Json& json) {
  DecoderConfig c = read_decoder(json, {.positions = 131072, .kv_heads = 8, .eos = 2});
  set_window(json, read_window(json, 4096), c);
  refuse_setting(json, "attention_bias");
  refuse_setting(json, "mlp_bias");
  return c;
}

std::vector<Preset> mistral_presets() {
  return {{.name = "mistral-7b", .config_json = R"({
    "architectures": ["MistralForCausalLM"], "model_type": "mistral", "vocab_size": 32000,
    "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "sliding_window": 4096,
    "hidden_act": "silu", "max_position_embeddings": 32768, "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0, "tie_word_embeddings": false, "initializer_range": 0.02})"}};
}

}  // namespace cleave::inline model
