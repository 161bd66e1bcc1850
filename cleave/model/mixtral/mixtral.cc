#include "cleave/model/mixtral/mixtral.h"

#include <nlohmann/json.hpp>

#include "cleave/model/decoder/decoder.h"
#include "cleave/model/model.h"

namespace cleave::inline model {

std::unique_ptr<Model> make_mixtral(const Json& config) {
  return make_decoder(config, mixtral_config(config));
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
