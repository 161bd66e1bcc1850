#include "cleave/model/qwen2/qwen2.h"

#include <nlohmann/json.hpp>

#include "cleave/model/decoder/decoder.h"
#include "cleave/model/model.h"

namespace cleave::inline model {

std::unique_ptr<Model> make_qwen2(const Json& config) {
  return make_decoder(config, qwen2_config(config));
}

std::vector<Preset> qwen2_presets() {
  const nlohmann::ordered_json config = {{"architectures", {"Qwen2ForCausalLM"}},
                                         {"model_type", "qwen2"},
                                         {"vocab_size", 151936},
                                         {"hidden_size", 896},
                                         {"intermediate_size", 4864},
                                         {"num_hidden_layers", 24},
                                         {"num_attention_heads", 14},
                                         {"num_key_value_heads", 2},
                                         {"use_sliding_window", false},
                                         {"sliding_window", 32768},
                                         {"max_window_layers", 24},
                                         {"hidden_act", "silu"},
                                         {"max_position_embeddings", 32768},
                                         {"rms_norm_eps", 1e-6},
                                         {"rope_theta", 1e6},
                                         {"tie_word_embeddings", true},
                                         {"initializer_range", 0.02}};
  return {{.name = "qwen2.5-0.5b", .config_json = config.dump()}};
}

}  // namespace cleave::inline model
