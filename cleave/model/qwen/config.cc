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

struct DenseSizes {
  const char* name;
  int64_t hidden, intermediate, layers, heads, kv_heads;
  bool tied;
  int64_t vocab = 151936;
};

/// `family`: what the models have in common.
std::vector<Preset> dense_presets(const std::vector<DenseSizes>& all,
                                  const nlohmann::ordered_json& family) {
  std::vector<Preset> out;
  for (const DenseSizes& p : all) {
    nlohmann::ordered_json config = family;
    config.update({{"vocab_size", p.vocab},
                   {"hidden_size", p.hidden},
                   {"intermediate_size", p.intermediate},
                   {"num_hidden_layers", p.layers},
                   {"num_attention_heads", p.heads},
                   {"num_key_value_heads", p.kv_heads},
                   {"use_sliding_window", false},
                   {"max_window_layers", p.layers},
                   {"hidden_act", "silu"},
                   {"rms_norm_eps", 1e-6},
                   {"rope_theta", 1e6},
                   {"tie_word_embeddings", p.tied},
                   {"initializer_range", 0.02}});
    out.push_back({.name = p.name, .config_json = config.dump()});
  }
  return out;
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
  return dense_presets({{"qwen2.5-0.5b", 896, 4864, 24, 14, 2, true},
                        {"qwen2.5-1.5b", 1536, 8960, 28, 12, 2, true},
                        {"qwen2.5-3b", 2048, 11008, 36, 16, 2, true},
                        {"qwen2.5-7b", 3584, 18944, 28, 28, 4, false, 152064},
                        {"qwen2.5-14b", 5120, 13824, 48, 40, 8, false, 152064},
                        {"qwen2.5-32b", 5120, 27648, 64, 40, 8, false, 152064},
                        {"qwen2.5-72b", 8192, 29568, 80, 64, 8, false, 152064}},
                       {{"architectures", {"Qwen2ForCausalLM"}},
                        {"model_type", "qwen2"},
                        {"max_position_embeddings", 32768}});
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
  return dense_presets({{"qwen3-0.6b", 1024, 3072, 28, 16, 8, true},
                        {"qwen3-1.7b", 2048, 6144, 28, 16, 8, true},
                        {"qwen3-4b", 2560, 9728, 36, 32, 8, true},
                        {"qwen3-8b", 4096, 12288, 36, 32, 8, false},
                        {"qwen3-14b", 5120, 17408, 40, 40, 8, false},
                        {"qwen3-32b", 5120, 25600, 64, 64, 8, false}},
                       {{"architectures", {"Qwen3ForCausalLM"}},
                        {"model_type", "qwen3"},
                        {"attention_bias", false},
                        {"max_position_embeddings", 40960}});
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
