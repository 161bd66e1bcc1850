#include <nlohmann/json.hpp>

#include "cleave/model/gpt2/gpt2.h"
#include "cleave/model/model.h"

namespace cleave::inline model {

std::vector<Preset> gpt2_presets() {
  struct Sizes {
    const char* name;
    int64_t hidden, layers, heads;
  };
  std::vector<Preset> out;
  for (const auto& [name, hidden, layers, heads] : {Sizes{"gpt2-tiny", 256, 6, 8},
                                                    {"gpt2", 768, 12, 12},
                                                    {"gpt2-medium", 1024, 24, 16},
                                                    {"gpt2-large", 1280, 36, 20},
                                                    {"gpt2-xl", 1600, 48, 25}}) {
    const nlohmann::ordered_json config = {{"architectures", {"GPT2LMHeadModel"}},
                                           {"model_type", "gpt2"},
                                           {"vocab_size", 50257},
                                           {"n_positions", 1024},
                                           {"n_embd", hidden},
                                           {"n_layer", layers},
                                           {"n_head", heads},
                                           {"n_inner", nullptr},
                                           {"activation_function", "gelu_new"},
                                           {"embd_pdrop", 0.1},
                                           {"attn_pdrop", 0.1},
                                           {"resid_pdrop", 0.1},
                                           {"layer_norm_epsilon", 1e-5},
                                           {"initializer_range", 0.02},
                                           {"tie_word_embeddings", true}};
    out.push_back({.name = name, .config_json = config.dump()});
  }
  return out;
}

}  // namespace cleave::inline model
