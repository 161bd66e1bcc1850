#include "cleave/model/bert/presets.h"

#include <array>
#include <nlohmann/json.hpp>

namespace cleave {
namespace {

struct Sizes {
  const char* name;
  int64_t hidden, intermediate, layers, heads;
};

constexpr std::array kBerts{
    Sizes{"bert-tiny", 128, 512, 2, 2},  // of Google's small models
    Sizes{"bert-base", 768, 3072, 12, 12},
    Sizes{"bert-large", 1024, 4096, 24, 16},
};
constexpr Sizes kImdbBert{"imdb-bert", 128, 512, 2, 4};

nlohmann::ordered_json config_of(const Sizes& s, int64_t vocab_size) {
  return {{"vocab_size", vocab_size},
          {"hidden_size", s.hidden},
          {"num_hidden_layers", s.layers},
          {"num_attention_heads", s.heads},
          {"intermediate_size", s.intermediate},
          {"hidden_act", "gelu"},
          {"hidden_dropout_prob", 0.1},
          {"initializer_range", 0.02}};
}

}  // namespace

std::optional<Json> bert_preset(const std::string& name, int64_t vocab_size) {
  const std::string source = "preset " + name;
  if (name == kImdbBert.name) {
    nlohmann::ordered_json config = config_of(kImdbBert, vocab_size);
    config["model_type"] = "imdb_bert";
    config["architectures"] = {"ImdbBert"};
    return Json::parse(config.dump(), source);
  }
  for (const Sizes& s : kBerts) {
    if (name != s.name) continue;
    nlohmann::ordered_json config = config_of(s, vocab_size);
    config["model_type"] = "bert";
    config["architectures"] = {"BertForMaskedLM"};
    config["attention_probs_dropout_prob"] = 0.1;
    config["max_position_embeddings"] = 512;
    config["type_vocab_size"] = 2;
    config["layer_norm_eps"] = 1e-12;
    config["tie_word_embeddings"] = true;
    return Json::parse(config.dump(), source);
  }
  return std::nullopt;
}

std::vector<std::string> bert_preset_names() {
  std::vector<std::string> names;
  for (const Sizes& s : kBerts) names.emplace_back(s.name);
  names.emplace_back(kImdbBert.name);
  return names;
}

}  // namespace cleave
