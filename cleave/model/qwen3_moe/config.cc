#include "cleave/model/qwen3_moe/qwen3_moe.h"

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

}  // namespace cleave::inline model
