#include "cleave/model/smollm3/smollm3.h"

#include <nlohmann/json.hpp>

#include "cleave/model/decoder/decoder.h"
#include "cleave/model/model.h"

namespace cleave::inline model {

std::unique_ptr<Model> make_smollm3(const Json& config) {
  return make_decoder(config, smollm3_config(config));
}

std::vector<Preset> smollm3_presets() {
  const nlohmann::ordered_json config = {{"architectures", {"SmolLM3ForCausalLM"}},
                                         {"model_type", "smollm3"},
                                         {"vocab_size", 128256},
                                         {"pad_token_id", nullptr},
                                         {"hidden_size", 2048},
                                         {"intermediate_size", 11008},
                                         {"num_hidden_layers", 36},
                                         {"num_attention_heads", 16},
                                         {"num_key_value_heads", 4},
                                         {"no_rope_layer_interval", 4},
                                         {"attention_bias", false},
                                         {"mlp_bias", false},
                                         {"hidden_act", "silu"},
                                         {"max_position_embeddings", 65536},
                                         {"rms_norm_eps", 1e-6},
                                         {"rope_theta", 5e6},
                                         {"tie_word_embeddings", true},
                                         {"initializer_range", 0.02}};
  return {{.name = "smollm3-3b", .config_json = config.dump()}};
}

}  // namespace cleave::inline model
