#include "cleave/model/gemma2/gemma2.h"

#include <nlohmann/json.hpp>

#include "cleave/model/decoder/decoder.h"
#include "cleave/model/model.h"

namespace cleave::inline model {

std::unique_ptr<Model> make_gemma2(const Json& config) {
  return make_decoder(config, gemma2_config(config));
}

std::vector<Preset> gemma2_presets() {
  struct Sizes {
    const char* name;
    int64_t vocab, hidden, intermediate, layers, heads, kv_heads, head_dim, positions, window;
  };
  std::vector<Preset> out;
  for (const Sizes& p : {Sizes{"gemma2-tiny", 32000, 256, 768, 6, 8, 4, 32, 2048, 512},
                         {"gemma2-2b", 256000, 2304, 9216, 26, 8, 4, 256, 8192, 4096}}) {
    const nlohmann::ordered_json config = {{"architectures", {"Gemma2ForCausalLM"}},
                                           {"model_type", "gemma2"},
                                           {"vocab_size", p.vocab},
                                           {"pad_token_id", nullptr},
                                           {"eos_token_id", nullptr},
                                           {"hidden_size", p.hidden},
                                           {"intermediate_size", p.intermediate},
                                           {"num_hidden_layers", p.layers},
                                           {"num_attention_heads", p.heads},
                                           {"num_key_value_heads", p.kv_heads},
                                           {"head_dim", p.head_dim},
                                           {"query_pre_attn_scalar", p.head_dim},
                                           {"attn_logit_softcapping", 50.0},
                                           {"final_logit_softcapping", 30.0},
                                           {"sliding_window", p.window},
                                           {"attention_bias", false},
                                           {"hidden_activation", "gelu_pytorch_tanh"},
                                           {"max_position_embeddings", p.positions},
                                           {"rms_norm_eps", 1e-6},
                                           {"rope_theta", 10000.0},
                                           {"tie_word_embeddings", true},
                                           {"initializer_range", 0.02}};
    out.push_back({.name = p.name, .config_json = config.dump()});
  }
  return out;
}

}  // namespace cleave::inline model
