#include <nlohmann/json.hpp>

#include "cleave/model/families.h"

namespace cleave::inline model {
namespace {

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

DecoderConfig qwen3_moe_config(const Json& json) {
  DecoderConfig c = read_decoder(json, {.positions = 32768, .kv_heads = 4});
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
          {.name = "qwen3-30b-a3b", .config_json = large}};
}

}  // namespace cleave::inline model
