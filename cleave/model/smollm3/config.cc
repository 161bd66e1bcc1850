#include "cleave/model/families.h"

namespace cleave::inline model {

namespace {

/// no_rope_layers says 1 for a layer with rotary positions and 0 for one without.
void read_rope_layers(const Json& json, DecoderConfig& c) {
  if (!json.has("no_rope_layers")) {
    const int64_t interval = json.int_or("no_rope_layer_interval", 4, 1, kMostLayers);
    for (int64_t i = 0; i < c.facts.num_layers; ++i) {
      c.layers[static_cast<size_t>(i)].has_rotary = (i + 1) % interval != 0;
    }
    return;
  }
  const Json list = json.at("no_rope_layers");
  if (list.size() < c.layers.size()) {
    list.fail(str("expected a number for each of num_hidden_layers=", c.layers.size()));
  }
  for (size_t i = 0; i < c.layers.size(); ++i)
    c.layers[i].has_rotary = list.at(i).as_int(0, 1) == 1;
}

/// Whether layer_types has a sliding layer.
bool lists_sliding(const Json& json) {
  if (!json.has("layer_types")) return false;
  const Json types = json.at("layer_types");
  for (size_t i = 0; i < types.size(); ++i) {
    if (types.at(i).as_string() == "sliding_attention") return true;
  }
  return false;
}

}  // namespace

DecoderConfig smollm3_config(const Json& json) {
  DecoderConfig c = read_decoder(json, {.positions = 32768,
                                        .theta = 2e6,
                                        .tied = true,
                                        .kv_heads = 4,
                                        .eos = 128001,
                                        .pad = 128004});
  c.qkv_bias = c.out_bias = json.bool_or("attention_bias", false);
  c.mlp_bias = json.bool_or("mlp_bias", false);
  read_rope_layers(json, c);
  // With layer_types, transformers applies the window even if use_sliding_window is false.
  const bool is_on = json.bool_or("use_sliding_window", false) || lists_sliding(json);
  std::vector<bool> is_sliding;
  for (const DecoderLayer& layer : c.layers) is_sliding.push_back(!layer.has_rotary);
  read_layer_types(json, is_on ? read_window(json, 0) : 0, is_sliding, c);
  return c;
}

std::vector<Preset> smollm3_presets() {
  return {{.name = "smollm3-3b", .config_json = R"({
    "architectures": ["SmolLM3ForCausalLM"], "model_type": "smollm3", "vocab_size": 128256,
    "pad_token_id": null, "hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36,
    "num_attention_heads": 16, "num_key_value_heads": 4, "no_rope_layer_interval": 4,
    "attention_bias": false, "mlp_bias": false, "hidden_act": "silu",
    "max_position_embeddings": 65536, "rms_norm_eps": 1e-6, "rope_theta": 5e6,
    "tie_word_embeddings": true, "initializer_range": 0.02})"}};
}

}  // namespace cleave::inline model
