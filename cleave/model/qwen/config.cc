#include <nlohmann/json.hpp>

#include "cleave/model/families.h"
#include "cleave/model/other_settings.h"

namespace cleave::inline model {
namespace {

/// Sets the windows of Qwen2 and Qwen3: use_sliding_window, sliding_window, max_window_layers and
/// layer_types.
void read_qwen_windows(const Json& json, DecoderConfig& c) {
  // Published files have a window of any value where it is off.
  const int64_t window = json.bool_or("use_sliding_window", false) ? read_window(json, 4096) : 0;
  const int64_t first = json.int_or("max_window_layers", 28, 0, kMostLayers);
  std::vector<bool> is_sliding;
  for (int64_t i = 0; i < c.facts.num_layers; ++i) is_sliding.push_back(i >= first);
  read_layer_types(json, window, is_sliding, c);
}

/// Experts are in every decoder_sparse_step-th block, without those of mlp_only_layers.
void read_sparse_layers(const Json& json, DecoderConfig& c) {
  const int64_t step = json.int_or("decoder_sparse_step", 1, 1, kMostLayers);
  for (int64_t i = 0; i < c.facts.num_layers; ++i) {
    c.layers[static_cast<size_t>(i)].has_experts = (i + 1) % step == 0;
  }
  if (!json.has("mlp_only_layers")) return;
  const Json dense = json.at("mlp_only_layers");
  for (size_t i = 0; i < dense.size(); ++i) {
    // As in transformers, a number without a layer has no effect.
    const int64_t layer = dense.at(i).as_int();
    if (layer >= 0 && layer < c.facts.num_layers) {
      c.layers[static_cast<size_t>(layer)].has_experts = false;
    }
  }
}

}  // namespace

DecoderConfig qwen2_config(const Json& json) {
  DecoderConfig c = read_decoder(json, {.positions = 32768, .kv_heads = 32});
  c.qkv_bias = true;
  read_qwen_windows(json, c);
  refuse_setting(json, "mlp_bias");
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

DecoderConfig qwen3_config(const Json& json) {
  DecoderConfig c = read_decoder(json, {.positions = 32768,
                                        .kv_heads = 32,
                                        .head_dim = 128,
                                        .own_keys = {"use_qk_norm", "qk_layernorm"}});
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

DecoderConfig qwen3_moe_config(const Json& json) {
  DecoderConfig c = read_decoder(
      json, {.positions = 32768,
             .kv_heads = 4,
             .own_keys = {"use_qk_norm", "qk_layernorm", "num_experts", "num_local_experts"}});
  c.qkv_bias = c.out_bias = json.bool_or("attention_bias", false);
  c.qk_norm = QkNorm::kEachHead;
  set_window(json, json.bool_or("use_sliding_window", false) ? read_window(json, 4096) : 0, c);
  refuse_setting(json, "mlp_bias");
  c.experts = read_experts(
      json, json.int_or("moe_intermediate_size", 768, 1, kMostWidth),
      {.num_experts = 128, .top_k = 8, .normalizes = json.bool_or("norm_topk_prob", false)});
  read_sparse_layers(json, c);
  return c;
}

std::vector<Preset> qwen3_moe_presets() {
  nlohmann::ordered_json config = {{"architectures", {"Qwen3MoeForCausalLM"}},
                                   {"model_type", "qwen3_moe"},
                                   {"vocab_size", 151936},
                                   {"hidden_size", 2048},
                                   {"intermediate_size", 6144},
                                   {"moe_intermediate_size", 768},
                                   {"num_hidden_layers", 48},
                                   {"num_attention_heads", 32},
                                   {"num_key_value_heads", 4},
                                   {"head_dim", 128},
                                   {"num_experts", 128},
                                   {"num_experts_per_tok", 8},
                                   {"norm_topk_prob", true},
                                   {"decoder_sparse_step", 1},
                                   {"attention_bias", false},
                                   {"use_sliding_window", false},
                                   {"hidden_act", "silu"},
                                   {"max_position_embeddings", 40960},
                                   {"rms_norm_eps", 1e-6},
                                   {"rope_theta", 1e6},
                                   {"tie_word_embeddings", false},
                                   {"initializer_range", 0.02}};
  const std::string large = config.dump();
  auto largest = config;
  largest.update({{"hidden_size", 4096},
                  {"intermediate_size", 12288},
                  {"moe_intermediate_size", 1536},
                  {"num_hidden_layers", 94},
                  {"num_attention_heads", 64}});
  config.update({{"hidden_size", 64},
                 {"intermediate_size", 128},
                 {"moe_intermediate_size", 32},
                 {"num_hidden_layers", 2},
                 {"num_attention_heads", 4},
                 {"num_key_value_heads", 2},
                 {"head_dim", 16},
                 {"num_experts", 8},
                 {"num_experts_per_tok", 2},
                 {"max_position_embeddings", 512}});
  return {{.name = "qwen3-moe-tiny", .config_json = config.dump()},
          {.name = "qwen3-30b-a3b", .config_json = large},
          {.name = "qwen3-235b-a22b", .config_json = largest.dump()}};
}

}  // namespace cleave::inline model
