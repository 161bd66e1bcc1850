#include <nlohmann/json.hpp>

#include "cleave/model/bert/bert.h"

namespace cleave {
namespace {

struct Sizes {
  const char* name;
  int64_t hidden, intermediate, layers, heads;
};

nlohmann::ordered_json config_of(const Sizes& s) {
  return {{"vocab_size", 30522},
          {"hidden_size", s.hidden},
          {"num_hidden_layers", s.layers},
          {"num_attention_heads", s.heads},
          {"intermediate_size", s.intermediate},
          {"hidden_act", "gelu"},
          {"hidden_dropout_prob", 0.1},
          {"initializer_range", 0.02}};
}

}  // namespace

std::vector<Preset> bert_presets() {
  std::vector<Preset> out;
  for (const Sizes& s : {Sizes{"bert-tiny", 128, 512, 2, 2},  // of Google's small models
                         {"bert-base", 768, 3072, 12, 12},
                         {"bert-large", 1024, 4096, 24, 16}}) {
    nlohmann::ordered_json config = config_of(s);
    config["model_type"] = "bert";
    config["architectures"] = {"BertForMaskedLM"};
    config["attention_probs_dropout_prob"] = 0.1;
    config["max_position_embeddings"] = 512;
    config["type_vocab_size"] = 2;
    config["layer_norm_eps"] = 1e-12;
    config["tie_word_embeddings"] = true;
    out.push_back({.name = s.name, .config_json = config.dump()});
  }
  nlohmann::ordered_json classifier = config_of({"imdb-bert", 128, 512, 2, 4});
  classifier["model_type"] = "imdb_bert";
  classifier["architectures"] = {"ImdbBert"};
  out.push_back({.name = "imdb-bert", .config_json = classifier.dump()});
  return out;
}

}  // namespace cleave
