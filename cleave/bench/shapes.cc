#include <nlohmann/json.hpp>

#include "cleave/bench/options.h"
#include "cleave/model/model.h"

namespace cleave::inline bench {
namespace {

nlohmann::ordered_json preset(const std::string& name, int64_t vocab_size) {
  return nlohmann::ordered_json::parse(preset_config(name, vocab_size).dump());
}

void set_dropout(nlohmann::ordered_json& config, double p) {
  for (auto& [key, value] : config.items()) {
    if (key.ends_with("pdrop") || key.ends_with("dropout_prob") || key.ends_with("_dropout")) {
      value = p;
    }
  }
}

}  // namespace

BenchShape bench_shape(const std::string& name, double dropout) {
  nlohmann::ordered_json config;
  int64_t seq_len = 256;
  if (name == "llama-135m") {
    config = preset("llama-1.1b", 32000);
    config.update({{"hidden_size", 768},
                   {"intermediate_size", 2048},
                   {"num_hidden_layers", 12},
                   {"num_attention_heads", 12},
                   {"num_key_value_heads", 12},
                   {"head_dim", 64}});
  } else if (name == "llama-1.1b") {
    config = preset("llama-1.1b", 32000);
  } else if (name == "gpt2-124m") {
    config = preset("gpt2", 50257);
    seq_len = 64;
  } else if (name == "bert-base") {
    config = preset("bert-base", 30522);
    seq_len = 128;
  } else {
    throw Error(Code::kUsage,
                str("shape '", name,
                    "' is unknown; expected llama-135m, llama-1.1b, gpt2-124m or bert-base"));
  }
  set_dropout(config, dropout);
  return {.config = Json::parse(config.dump(), "shape " + name), .seq_len = seq_len};
}

}  // namespace cleave::inline bench
