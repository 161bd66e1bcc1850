#include "cleave/model/olmo2/olmo2.h"

#include <nlohmann/json.hpp>

#include "cleave/model/decoder/decoder.h"
#include "cleave/model/model.h"

namespace cleave::inline model {

std::unique_ptr<Model> make_olmo2(const Json& config) {
  return make_decoder(config, olmo2_config(config));
}

std::vector<Preset> olmo2_presets() {
  const nlohmann::ordered_json config = {{"architectures", {"Olmo2ForCausalLM"}},
                                         {"model_type", "olmo2"},
                                         {"vocab_size", 100352},
                                         {"hidden_size", 2048},
                                         {"intermediate_size", 8192},
                                         {"num_hidden_layers", 16},
                                         {"num_attention_heads", 16},
                                         {"num_key_value_heads", 16},
                                         {"attention_bias", false},
                                         {"pad_token_id", nullptr},
                                         {"hidden_act", "silu"},
                                         {"max_position_embeddings", 4096},
                                         {"rms_norm_eps", 1e-6},
                                         {"rope_theta", 500000.0},
                                         {"tie_word_embeddings", false},
                                         {"initializer_range", 0.02}};
  return {{.name = "olmo2-1b", .config_json = config.dump()}};
}

}  // namespace cleave::inline model
