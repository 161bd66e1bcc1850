#include "cleave/model/phi3/phi3.h"

#include <nlohmann/json.hpp>

#include "cleave/model/decoder/decoder.h"
#include "cleave/model/model.h"

namespace cleave::inline model {

std::unique_ptr<Model> make_phi3(const Json& config) {
  return make_decoder(config, phi3_config(config));
}

std::vector<Preset> phi3_presets() {
  const nlohmann::ordered_json config = {{"architectures", {"Phi3ForCausalLM"}},
                                         {"model_type", "phi3"},
                                         {"vocab_size", 32064},
                                         {"hidden_size", 3072},
                                         {"intermediate_size", 8192},
                                         {"num_hidden_layers", 32},
                                         {"num_attention_heads", 32},
                                         {"num_key_value_heads", 32},
                                         {"sliding_window", 2047},
                                         {"original_max_position_embeddings", 4096},
                                         {"pad_token_id", nullptr},
                                         {"hidden_act", "silu"},
                                         {"max_position_embeddings", 4096},
                                         {"rms_norm_eps", 1e-5},
                                         {"rope_theta", 10000.0},
                                         {"tie_word_embeddings", false},
                                         {"initializer_range", 0.02}};
  return {{.name = "phi3-mini", .config_json = config.dump()}};
}

}  // namespace cleave::inline model
