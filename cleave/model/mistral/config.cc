#include <nlohmann/json.hpp>

#include "cleave/model/families.h"
#include "cleave/model/other_settings.h"

namespace cleave::inline model {

DecoderConfig mistral_config(const Json& json) {
  DecoderConfig c = read_decoder(json, {.positions = 131072, .kv_heads = 8, .eos = 2});
  set_window(json, read_window(json, 4096), c);
  refuse_setting(json, "attention_bias");
  refuse_setting(json, "mlp_bias");
  return c;
}

std::vector<Preset> mistral_presets() {
  return {{.name = "mistral-7b", .config_json = R"({
    "architectures": ["MistralForCausalLM"], "model_type": "mistral", "vocab_size": 32000,
    "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "sliding_window": 4096,
    "hidden_act": "silu", "max_position_embeddings": 32768, "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0, "tie_word_embeddings": false, "initializer_range": 0.02})"}};
}

DecoderConfig mixtral_config(const Json& json) {
  DecoderConfig c = read_decoder(json, {.positions = 131072,
                                        .norm_eps = 1e-5,
                                        .theta = 1e6,
                                        .kv_heads = 8,
                                        .eos = 2,
                                        .own_keys = {"num_experts", "num_local_experts"}});
  set_window(json, read_window(json, 0), c);
  refuse_setting(json, "attention_bias");
  refuse_setting(json, "mlp_bias");
  c.experts =
      read_experts(json, c.intermediate, {.num_experts = 8, .top_k = 2, .has_mixtral_names = true});
  for (DecoderLayer& layer : c.layers) layer.has_experts = true;
  return c;
}

std::vector<Preset> mixtral_presets() {
  nlohmann::ordered_json config = {{"architectures", {"MixtralForCausalLM"}},
                                   {"model_type", "mixtral"},
                                   {"vocab_size", 32000},
                                   {"hidden_size", 4096},
                                   {"intermediate_size", 14336},
                                   {"num_hidden_layers", 32},
                                   {"num_attention_heads", 32},
                                   {"num_key_value_heads", 8},
                                   {"num_local_experts", 8},
                                   {"num_experts_per_tok", 2},
                                   {"sliding_window", nullptr},
                                   {"hidden_act", "silu"},
                                   {"max_position_embeddings", 32768},
                                   {"rms_norm_eps", 1e-5},
                                   {"rope_theta", 1e6},
                                   {"tie_word_embeddings", false},
                                   {"initializer_range", 0.02}};
  const std::string large = config.dump();
  config.update({{"hidden_size", 64},
                 {"intermediate_size", 128},
                 {"num_hidden_layers", 2},
                 {"num_attention_heads", 4},
                 {"num_key_value_heads", 2},
                 {"num_local_experts", 4},
                 {"max_position_embeddings", 512}});
  return {{.name = "mixtral-tiny", .config_json = config.dump()},
          {.name = "mixtral-8x7b", .config_json = large}};
}

}  // namespace cleave::inline model
