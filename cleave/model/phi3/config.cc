#include "cleave/model/families.h"
#include "cleave/model/other_settings.h"

namespace cleave::inline model {

DecoderConfig phi3_config(const Json& json) {
  DecoderConfig c = read_decoder(
      json,
      {.positions = 4096, .norm_eps = 1e-5, .eos = 32000, .pad = 32000, .has_phi3_rotary = true});
  c.is_fused = true;
  set_window(json, read_window(json, 0), c);
  for (const char* key : {"attention_bias", "mlp_bias", "resid_pdrop", "embd_pdrop"}) {
    refuse_setting(json, key);
  }
  return c;
}

std::vector<Preset> phi3_presets() {
  return {{.name = "phi3-mini", .config_json = R"({
    "architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "vocab_size": 32064,
    "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 32, "sliding_window": 2047,
    "original_max_position_embeddings": 4096, "pad_token_id": null, "hidden_act": "silu",
    "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "tie_word_embeddings": false, "initializer_range": 0.02})"}};
}

}  // namespace cleave::inline model
