#include "cleave/model/llama/llama.h"

#include <nlohmann/json.hpp>

#include "cleave/model/decoder/decoder.h"
#include "cleave/model/model.h"

namespace cleave::inline model {

std::unique_ptr<Model> make_llama(const Json& config) {
  return make_decoder(config, llama_config(config));
}

std::vector<Preset> llama_presets() {
  struct Sizes {
    const char* name;
    int64_t hidden, intermediate, layers, heads, kv_heads, positions;
    double theta;
    bool tied;
    int64_t vocab = 32000;
  };
  std::vector<Preset> out;
  for (const Sizes& p : {Sizes{"llama-tiny", 256, 688, 6, 8, 4, 2048, 10000, true},
                         {"llama-15m", 288, 768, 6, 6, 6, 2048, 10000, true},
                         {"llama-135m", 576, 1536, 30, 9, 3, 2048, 10000, true},
                         {"smollm2-135m", 576, 1536, 30, 9, 3, 8192, 100000, true, 49152},
                         {"llama-1.1b", 2048, 5632, 22, 32, 4, 2048, 10000, false},
                         {"llama3-8b", 4096, 14336, 32, 32, 8, 8192, 500000, false},
                         {"llama2-7b", 4096, 11008, 32, 32, 32, 4096, 10000, false}}) {
    const nlohmann::ordered_json config = {{"architectures", {"LlamaForCausalLM"}},
                                           {"model_type", "llama"},
                                           {"vocab_size", p.vocab},
                                           {"hidden_size", p.hidden},
                                           {"intermediate_size", p.intermediate},
                                           {"num_hidden_layers", p.layers},
                                           {"num_attention_heads", p.heads},
                                           {"num_key_value_heads", p.kv_heads},
                                           {"head_dim", p.hidden / p.heads},
                                           {"hidden_act", "silu"},
                                           {"max_position_embeddings", p.positions},
                                           {"rms_norm_eps", 1e-5},
                                           {"rope_theta", p.theta},
                                           {"rope_scaling", nullptr},
                                           {"attention_bias", false},
                                           {"mlp_bias", false},
                                           {"tie_word_embeddings", p.tied},
                                           {"initializer_range", 0.02}};
    out.push_back({.name = p.name, .config_json = config.dump()});
  }
  return out;
}

}  // namespace cleave::inline model
