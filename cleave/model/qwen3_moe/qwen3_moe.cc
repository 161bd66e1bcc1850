#include "cleave/model/qwen3_moe/qwen3_moe.h"

#include <nlohmann/json.hpp>

#include "cleave/model/decoder/decoder.h"
#include "cleave/model/model.h"

namespace cleave::inline model {

std::unique_ptr<Model> make_qwen3_moe(const Json& config) {
  return make_decoder(config, qwen3_moe_config(config));
}

std::vector<Preset> qwen3_moe_presets() {
  nlohmann::ordered_json config = {{"architectures", {"Qwen3MoeForCausalLM"}},
                                   {"model_type", "qwen3_moe"},
                                   {"vocab_size", 151936},
                                   {"hidden_size", 2048},
                                   {"intermediate_size", 6144},
                                   {"moe_intermediate_size", 768},
                                   {"num_hidden_layers", 48},
                                   {"num_attention_heads", 32},
                                   {"num_key_value_heads", 4},
                                   {"head_dim", 128},
                                   {"num_experts", 128},
                                   {"num_experts_per_tok", 8},
                                   {"norm_topk_prob", true},
                                   {"decoder_sparse_step", 1},
                                   {"attention_bias", false},
                                   {"use_sliding_window", false},
                                   {"hidden_act", "silu"},
                                   {"max_position_embeddings", 40960},
                                   {"rms_norm_eps", 1e-6},
                                   {"rope_theta", 1e6},
                                   {"tie_word_embeddings", false},
                                   {"initializer_range", 0.02}};
  const std::string large = config.dump();
  config.update({{"hidden_size", 64},
                 {"intermediate_size", 128},
                 {"moe_intermediate_size", 32},
                 {"num_hidden_layers", 2},
                 {"num_attention_heads", 4},
                 {"num_key_value_heads", 2},
                 {"head_dim", 16},
                 {"num_experts", 8},
                 {"num_experts_per_tok", 2},
                 {"max_position_embeddings", 512}});
  return {{.name = "qwen3-moe-tiny", .config_json = config.dump()},
          {.name = "qwen3-30b-a3b", .config_json = large}};
}

}  // namespace cleave::inline model
