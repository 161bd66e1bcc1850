#include <cmath>
#include <nlohmann/json.hpp>

#include "cleave/model/facts.h"
#include "cleave/model/families.h"
#include "cleave/model/other_settings.h"

namespace cleave::inline model {
namespace {

/// A soft cap; `absent` is the value if the key is missing, and null is 0: no cap.
double read_soft_cap(const Json& json, std::string_view key, double absent) {
  constexpr double kLeast = 1e-6, kMost = 1e6;
  return has_key(json, key) ? json.number_or(key, 0, kLeast, kMost) : absent;
}

/// What Gemma 2 and 3 have in common: norms before and after attention and MLP with weights around
/// 0, a scaled embedding, query_pre_attn_scalar, the soft cap of the logits, and sliding windows by
/// layer_types; without that key, layers full_every, 2 full_every, ... are full.
DecoderConfig read_gemma(const Json& json, const DecoderDefaults& defaults, int64_t full_every) {
  constexpr double kLeastScalar = 1e-6, kMostScalar = 1e9;
  DecoderConfig c = read_decoder(json, defaults);
  c.activation = read_activation(json, "hidden_activation", "gelu_pytorch_tanh");
  c.qkv_bias = c.out_bias = json.bool_or("attention_bias", false);
  c.norms = BlockNorms::kBoth;
  c.norm_offset = 1;
  c.embedding_scale = std::sqrt(static_cast<double>(c.facts.hidden));
  c.score_divisor =
      std::sqrt(json.number_or("query_pre_attn_scalar", 256, kLeastScalar, kMostScalar));
  read_periodic_windows(json, full_every, c);
  refuse_setting(json, "mlp_bias");
  return c;
}

struct GemmaSizes {
  const char* name;
  int64_t vocab, hidden, intermediate, layers, heads, kv_heads, head_dim, positions, window;
};

/// `config`, which begins with the architecture and the model_type, and what Gemma 2 and 3 share.
Preset preset(const GemmaSizes& p, nlohmann::ordered_json config) {
  config.update({{"vocab_size", p.vocab},
                 {"pad_token_id", nullptr},
                 {"eos_token_id", nullptr},
                 {"hidden_size", p.hidden},
                 {"intermediate_size", p.intermediate},
                 {"num_hidden_layers", p.layers},
                 {"num_attention_heads", p.heads},
                 {"num_key_value_heads", p.kv_heads},
                 {"head_dim", p.head_dim},
                 {"query_pre_attn_scalar", p.head_dim},
                 {"sliding_window", p.window},
                 {"attention_bias", false},
                 {"hidden_activation", "gelu_pytorch_tanh"},
                 {"max_position_embeddings", p.positions},
                 {"rms_norm_eps", 1e-6},
                 {"tie_word_embeddings", true},
                 {"initializer_range", 0.02}});
  return {.name = p.name, .config_json = config.dump()};
}

}  // namespace

DecoderConfig gemma2_config(const Json& json) {
  DecoderConfig c = read_gemma(
      json,
      {.positions = 8192,
       .tied = true,
       .kv_heads = 4,
       .head_dim = 256,
       .eos = 1,
       .pad = 0,
       .own_keys = {"attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar"}},
      2);
  c.score_cap = read_soft_cap(json, "attn_logit_softcapping", 50);
  c.logit_cap = read_soft_cap(json, "final_logit_softcapping", 30);
  return c;
}

std::vector<Preset> gemma2_presets() {
  std::vector<Preset> out;
  for (const GemmaSizes& p : {GemmaSizes{"gemma2-tiny", 32000, 256, 768, 6, 8, 4, 32, 2048, 512},
                              {"gemma2-2b", 256000, 2304, 9216, 26, 8, 4, 256, 8192, 4096}}) {
    out.push_back(preset(p, {{"architectures", {"Gemma2ForCausalLM"}},
                             {"model_type", "gemma2"},
                             {"attn_logit_softcapping", 50.0},
                             {"final_logit_softcapping", 30.0},
                             {"rope_theta", 10000.0}}));
  }
  return out;
}

DecoderConfig gemma3_config(const Json& json) {
  DecoderConfig c = read_gemma(json,
                               {.positions = 131072,
                                .tied = true,
                                .kv_heads = 4,
                                .head_dim = 256,
                                .eos = 1,
                                .pad = 0,
                                .has_layer_rotary = true,
                                .own_keys = {"final_logit_softcapping", "query_pre_attn_scalar",
                                             "use_qk_norm", "qk_layernorm"}},
                               json.int_or("sliding_window_pattern", 6, 1, kMostLayers));
  c.qk_norm = QkNorm::kEachHead;
  c.logit_cap = read_soft_cap(json, "final_logit_softcapping", 0);
  read_layer_rotary(json,
                    {.full = read_theta(json, "rope_theta", 1e6),
                     .sliding = read_theta(json, "rope_local_base_freq", 10000)},
                    c);
  return c;
}

std::vector<Preset> gemma3_presets() {
  std::vector<Preset> out;
  for (const GemmaSizes& p : {GemmaSizes{"gemma3-tiny", 32000, 256, 768, 6, 4, 1, 64, 2048, 512},
                              {"gemma3-270m", 262144, 640, 2048, 18, 4, 1, 256, 32768, 512},
                              {"gemma3-1b", 262144, 1152, 6912, 26, 4, 1, 256, 32768, 512}}) {
    out.push_back(preset(p, {{"architectures", {"Gemma3ForCausalLM"}},
                             {"model_type", "gemma3_text"},
                             {"sliding_window_pattern", 6},
                             {"rope_theta", 1e6},
                             {"rope_local_base_freq", 10000.0}}));
  }
  return out;
}

}  // namespace cleave::inline model
