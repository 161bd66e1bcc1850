#include <nlohmann/json.hpp>

#include "cleave/model/bert/bert.h"

namespace cleave::inline model {

std::vector<Preset> bert_presets() {
  struct Sizes {
    const char* name;
    int64_t hidden, intermediate, layers, heads;
  };
  std::vector<Preset> out;
  for (const Sizes& s : {Sizes{"bert-tiny", 128, 512, 2, 2},  // of Google's small models
                         {"bert-base", 768, 3072, 12, 12},
                         {"bert-large", 1024, 4096, 24, 16}}) {
    const nlohmann::ordered_json config = {{"vocab_size", 30522},
                                           {"hidden_size", s.hidden},
                                           {"num_hidden_layers", s.layers},
                                           {"num_attention_heads", s.heads},
                                           {"intermediate_size", s.intermediate},
                                           {"hidden_act", "gelu"},
                                           {"hidden_dropout_prob", 0.1},
                                           {"initializer_range", 0.02},
                                           {"model_type", "bert"},
                                           {"architectures", {"BertForMaskedLM"}},
                                           {"attention_probs_dropout_prob", 0.1},
                                           {"max_position_embeddings", 512},
                                           {"type_vocab_size", 2},
                                           {"layer_norm_eps", 1e-12},
                                           {"tie_word_embeddings", true}};
    out.push_back({.name = s.name, .config_json = config.dump()});
  }
  return out;
}

std::vector<Preset> roberta_presets() {
  std::vector<Preset> out;
  for (const Preset& bert : bert_presets()) {
    if (bert.name == "bert-tiny") continue;
    auto config = nlohmann::ordered_json::parse(bert.config_json);
    config.update({{"vocab_size", 50265},
                   {"model_type", "roberta"},
                   {"architectures", {"RobertaForMaskedLM"}},
                   {"max_position_embeddings", 514},
                   {"type_vocab_size", 1},
                   {"layer_norm_eps", 1e-5},
                   {"bos_token_id", 0},
                   {"pad_token_id", 1},
                   {"eos_token_id", 2}});
    const std::string size = bert.name.substr(std::string("bert").size());
    out.push_back({.name = "roberta" + size, .config_json = config.dump()});
  }
  return out;
}

std::vector<Preset> xlm_roberta_presets() {
  std::vector<Preset> out;
  for (const Preset& roberta : roberta_presets()) {
    auto config = nlohmann::ordered_json::parse(roberta.config_json);
    config.update({{"vocab_size", 250002},
                   {"model_type", "xlm-roberta"},
                   {"architectures", {"XLMRobertaForMaskedLM"}}});
    out.push_back({.name = "xlm-" + roberta.name, .config_json = config.dump()});
  }
  return out;
}

std::vector<Preset> distilbert_presets() {
  const nlohmann::ordered_json config = {{"vocab_size", 30522},
                                         {"dim", 768},
                                         {"n_layers", 6},
                                         {"n_heads", 12},
                                         {"hidden_dim", 3072},
                                         {"activation", "gelu"},
                                         {"dropout", 0.1},
                                         {"attention_dropout", 0.1},
                                         {"seq_classif_dropout", 0.2},
                                         {"initializer_range", 0.02},
                                         {"model_type", "distilbert"},
                                         {"architectures", {"DistilBertForMaskedLM"}},
                                         {"max_position_embeddings", 512},
                                         {"pad_token_id", 0},
                                         {"tie_word_embeddings", true}};
  return {{.name = "distilbert-base", .config_json = config.dump()}};
}

}  // namespace cleave::inline model
