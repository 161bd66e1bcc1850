#include "cleave/model/families.h"
#include "cleave/model/other_settings.h"

namespace cleave::inline model {

DecoderConfig olmo2_config(const Json& json) {
  DecoderConfig c = read_decoder(
      json,
      {.norm_eps = 1e-5, .eos = 50279, .pad = 1, .own_keys = {"use_qk_norm", "qk_layernorm"}});
  c.qkv_bias = c.out_bias = json.bool_or("attention_bias", false);
  c.norms = BlockNorms::kOutputs;
  c.qk_norm = QkNorm::kAllHeads;
  set_window(json, 0, c);
  refuse_window(json);
  refuse_setting(json, "mlp_bias");
  return c;
}

std::vector<Preset> olmo2_presets() {
  return {{.name = "olmo2-1b", .config_json = R"({
    "architectures": ["Olmo2ForCausalLM"], "model_type": "olmo2", "vocab_size": 100352,
    "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
    "num_attention_heads": 16, "num_key_value_heads": 16, "attention_bias": false,
    "pad_token_id": null, "hidden_act": "silu", "max_position_embeddings": 4096, "rms_norm_eps": 1e-6,
    "rope_theta": 500000.0, "tie_word_embeddings": false, "initializer_range": 0.02})"}};
}

}  // namespace cleave::inline model
