#include <nlohmann/json.hpp>

#include "cleave/model/families.h"

namespace cleave::inline model {

DecoderConfig gemma3_config(const Json& json) {
  DecoderConfig c = read_gemma(json,
                               {.positions = 131072,
                                .tied = true,
                                .kv_heads = 4,
                                .head_dim = 256,
                                .eos = 1,
                                .pad = 0,
                                .has_layer_rotary = true},
                               json.int_or("sliding_window_pattern", 6, 1, kMostLayers));
  c.qk_norm = QkNorm::kEachHead;
  c.logit_cap = read_soft_cap(json, "final_logit_softcapping", 0);
  read_layer_rotary(json, c);
  // transformers reads this key and does not apply it.
  refuse_setting(json, "attn_logit_softcapping");
  return c;
}

std::vector<Preset> gemma3_presets() {
  struct Sizes {
    const char* name;
    int64_t vocab, hidden, intermediate, layers, heads, head_dim, positions, window;
  };
  std::vector<Preset> out;
  for (const Sizes& p : {Sizes{"gemma3-tiny", 32000, 256, 768, 6, 4, 64, 2048, 512},
                         {"gemma3-270m", 262144, 640, 2048, 18, 4, 256, 32768, 512},
                         {"gemma3-1b", 262144, 1152, 6912, 26, 4, 256, 32768, 512}}) {
    const nlohmann::ordered_json config = {{"architectures", {"Gemma3ForCausalLM"}},
                                           {"model_type", "gemma3_text"},
                                           {"vocab_size", p.vocab},
                                           {"pad_token_id", nullptr},
                                           {"eos_token_id", nullptr},
                                           {"hidden_size", p.hidden},
                                           {"intermediate_size", p.intermediate},
                                           {"num_hidden_layers", p.layers},
                                           {"num_attention_heads", p.heads},
                                           {"num_key_value_heads", 1},
                                           {"head_dim", p.head_dim},
                                           {"query_pre_attn_scalar", p.head_dim},
                                           {"sliding_window", p.window},
                                           {"sliding_window_pattern", 6},
                                           {"attention_bias", false},
                                           {"hidden_activation", "gelu_pytorch_tanh"},
                                           {"max_position_embeddings", p.positions},
                                           {"rms_norm_eps", 1e-6},
                                           {"rope_theta", 1e6},
                                           {"rope_local_base_freq", 10000.0},
                                           {"tie_word_embeddings", true},
                                           {"initializer_range", 0.02}};
    out.push_back({.name = p.name, .config_json = config.dump()});
  }
  return out;
}

}  // namespace cleave::inline model
