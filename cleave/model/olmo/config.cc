#include "cleave/model/families.h"
#include "cleave/model/other_settings.h"

namespace cleave::inline model {
namespace {

/// What OLMo 2 and 3 have in common.
DecoderConfig read_olmo(const Json& json, const DecoderDefaults& family) {
  DecoderDefaults defaults = family;
  defaults.norm_eps = 1e-5;
  defaults.eos = 50279;
  defaults.pad = 1;
  defaults.own_keys = {"use_qk_norm", "qk_layernorm"};
  DecoderConfig c = read_decoder(json, defaults);
  c.qkv_bias = c.out_bias = json.bool_or("attention_bias", false);
  c.norms = BlockNorms::kOutputs;
  c.qk_norm = QkNorm::kAllHeads;
  refuse_setting(json, "mlp_bias");
  return c;
}

}  // namespace

DecoderConfig olmo2_config(const Json& json) {
  DecoderConfig c = read_olmo(json, {});
  set_window(json, 0, c);
  refuse_window(json);
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

DecoderConfig olmo3_config(const Json& json) {
  DecoderConfig c = read_olmo(json, {.has_layer_rotary = true});
  read_periodic_windows(json, 4, c);
  const double theta = read_theta(json, "rope_theta", 500000);
  read_layer_rotary(json, {.full = theta, .sliding = theta}, c);
  return c;
}

std::vector<Preset> olmo3_presets() {
  return {{.name = "olmo3-7b", .config_json = R"({
    "architectures": ["Olmo3ForCausalLM"], "model_type": "olmo3", "vocab_size": 100278,
    "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 32, "attention_bias": false,
    "pad_token_id": null, "hidden_act": "silu", "max_position_embeddings": 65536,
    "rms_norm_eps": 1e-6, "rope_theta": 500000.0, "sliding_window": 4096,
    "rope_scaling": {"rope_type": "yarn", "factor": 8.0, "attention_factor": 1.2079441541679836,
                     "beta_fast": 32, "beta_slow": 1, "original_max_position_embeddings": 8192},
    "tie_word_embeddings": false, "initializer_range": 0.02})"}};
}

}  // namespace cleave::inline model
