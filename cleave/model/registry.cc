#include <array>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>

#include "cleave/base/suggest.h"
#include "cleave/model/bert/bert.h"
#include "cleave/model/bert/presets.h"
#include "cleave/model/imdb_bert/imdb_bert.h"
#include "cleave/model/llama/llama.h"
#include "cleave/model/model.h"

namespace cleave {
namespace {

struct Registry {
  std::mutex mutex;
  std::map<std::string, ModelFactory> factories{
      {"llama", &make_llama}, {"bert", &make_bert}, {"imdb_bert", &make_imdb_bert}};
};

Registry& registry() {
  static Registry instance;
  return instance;
}

struct Preset {
  const char* name;
  int64_t hidden, intermediate, layers, heads, kv_heads;
  int64_t positions;
  double theta;
  bool tied;
  double eps;
};

constexpr std::array kPresets{
    Preset{"llama-tiny", 256, 688, 6, 8, 4, 2048, 10000, true, 1e-5},
    Preset{"llama-15m", 288, 768, 6, 6, 6, 2048, 10000, true, 1e-5},
    Preset{"llama-135m", 576, 1536, 30, 9, 3, 2048, 10000, true, 1e-5},
    Preset{"llama-1.1b", 2048, 5632, 22, 32, 4, 2048, 10000, false, 1e-5},
    Preset{"llama3-8b", 4096, 14336, 32, 32, 8, 8192, 500000, false, 1e-5},
    Preset{"llama2-7b", 4096, 11008, 32, 32, 32, 4096, 10000, false, 1e-5},
};

}  // namespace

DTensor Model::forward(const DTensor& ids, const Context& context) {
  DTensor x = ids;
  for (Layer* layer : sequence()) x = (*layer)(x, context);
  return x;
}

void register_model(const std::string& model_type, ModelFactory factory) {
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  r.factories[model_type] = factory;
}

std::unique_ptr<Model> make_model(const Json& config) {
  const std::string type = config.at("model_type").as_string();
  ModelFactory factory = nullptr;
  std::vector<std::string> known;
  {
    Registry& r = registry();
    const std::lock_guard lock(r.mutex);
    const auto found = r.factories.find(type);
    if (found != r.factories.end()) factory = found->second;
    for (const auto& entry : r.factories) known.push_back(entry.first);
  }
  if (factory == nullptr) {
    config.at("model_type")
        .fail(str("no such model family is registered", did_you_mean(type, known)));
  }
  std::unique_ptr<Model> model = factory(config);
  model->name_tree();
  return model;
}

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const Preset& p : kPresets) names.emplace_back(p.name);
  for (const std::string& name : bert_preset_names()) names.push_back(name);
  return names;
}

Json preset_config(const std::string& name, int64_t vocab_size) {
  for (const Preset& p : kPresets) {
    if (name != p.name) continue;
    const nlohmann::ordered_json config = {{"architectures", {"LlamaForCausalLM"}},
                                           {"model_type", "llama"},
                                           {"vocab_size", vocab_size},
                                           {"hidden_size", p.hidden},
                                           {"intermediate_size", p.intermediate},
                                           {"num_hidden_layers", p.layers},
                                           {"num_attention_heads", p.heads},
                                           {"num_key_value_heads", p.kv_heads},
                                           {"head_dim", p.hidden / p.heads},
                                           {"hidden_act", "silu"},
                                           {"max_position_embeddings", p.positions},
                                           {"rms_norm_eps", p.eps},
                                           {"rope_theta", p.theta},
                                           {"rope_scaling", nullptr},
                                           {"attention_bias", false},
                                           {"mlp_bias", false},
                                           {"tie_word_embeddings", p.tied},
                                           {"initializer_range", 0.02}};
    return Json::parse(config.dump(), "preset " + name);
  }
  if (const std::optional<Json> bert = bert_preset(name, vocab_size)) return *bert;
  const auto names = preset_names();
  throw Error(Code::kUsage, str("model '", name, "' is neither a folder nor a preset",
                                did_you_mean(name, names)));
}

}  // namespace cleave
