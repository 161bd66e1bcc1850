#include <algorithm>
#include <mutex>
#include <nlohmann/json.hpp>

#include "cleave/base/suggest.h"
#include "cleave/model/bert/bert.h"
#include "cleave/model/decoder/decoder.h"
#include "cleave/model/families.h"
#include "cleave/model/gpt2/gpt2.h"
#include "cleave/model/model.h"

namespace cleave::inline model {
namespace {

/// A decoder without memory from its config.json.
template <DecoderConfig (*read)(const Json&)>
std::unique_ptr<Model> decoder(const Json& config) {
  return make_decoder(config, read(config));
}

struct Family {
  std::string model_type;
  ModelFactory make;
  std::vector<Preset> (*presets)();  // null: none
};

struct Registry {
  std::mutex mutex;
  std::vector<Family> families{{"llama", &decoder<&llama_config>, &llama_presets},
                               {"gpt2", &make_gpt2, &gpt2_presets},
                               {"bert", &make_bert, &bert_presets},
                               {"roberta", &make_bert, &roberta_presets},
                               {"xlm-roberta", &make_bert, &xlm_roberta_presets},
                               {"camembert", &make_bert, nullptr},
                               {"distilbert", &make_bert, &distilbert_presets},
                               {"qwen2", &decoder<&qwen2_config>, &qwen2_presets},
                               {"qwen3", &decoder<&qwen3_config>, &qwen3_presets},
                               {"qwen3_moe", &decoder<&qwen3_moe_config>, &qwen3_moe_presets},
                               {"mistral", &decoder<&mistral_config>, &mistral_presets},
                               {"mixtral", &decoder<&mixtral_config>, &mixtral_presets},
                               {"smollm3", &decoder<&smollm3_config>, &smollm3_presets},
                               {"olmo2", &decoder<&olmo2_config>, &olmo2_presets},
                               {"olmo3", &decoder<&olmo3_config>, &olmo3_presets},
                               {"phi3", &decoder<&phi3_config>, &phi3_presets},
                               {"gemma2", &decoder<&gemma2_config>, &gemma2_presets},
                               {"gemma3_text", &decoder<&gemma3_config>, &gemma3_presets}};
};

Registry& registry() {
  static Registry instance;
  return instance;
}

std::vector<Family> families() {
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  return r.families;
}

std::vector<Preset> presets() {
  std::vector<Preset> out;
  for (const Family& family : families()) {
    if (family.presets == nullptr) continue;
    const std::vector<Preset> own = family.presets();
    out.insert(out.end(), own.begin(), own.end());
  }
  return out;
}

}  // namespace

void register_model(const std::string& model_type, ModelFactory factory,
                    std::vector<Preset> (*presets)()) {
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  const auto found = std::find_if(r.families.begin(), r.families.end(),
                                  [&](const Family& f) { return f.model_type == model_type; });
  if (found != r.families.end()) r.families.erase(found);
  r.families.push_back({model_type, factory, presets});
}

std::unique_ptr<Model> make_model(const Json& config) {
  const std::string type = config.string_or("model_type", "");
  ModelFactory factory = nullptr;
  std::string known;
  for (const Family& family : families()) {
    if (family.model_type == type) factory = family.make;
    known += (known.empty() ? "" : ", ") + family.model_type;
  }
  if (!config.has("model_type")) {
    config.fail(str("it has no model_type, as some older files; add the family, one of ", known));
  }
  if (factory == nullptr) {
    config.at("model_type")
        .fail(str("no such model family is registered; expected one of ", known));
  }
  std::unique_ptr<Model> model = factory(config);
  model->name_tree();
  return model;
}

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const Preset& preset : presets()) names.push_back(preset.name);
  return names;
}

Json preset_config(const std::string& name, int64_t vocab_size) {
  for (const Preset& preset : presets()) {
    if (name != preset.name) continue;
    auto config = nlohmann::ordered_json::parse(preset.config_json);
    if (vocab_size > 0) config["vocab_size"] = vocab_size;
    return Json::parse(config.dump(), "preset " + name);
  }
  const auto likely = likely_name(name, preset_names());
  std::string all;
  for (const std::string& preset : preset_names()) all += (all.empty() ? "" : ", ") + preset;
  throw Error(Code::kUsage,
              str("model '", name, "' is neither a folder nor a preset; ",
                  likely ? "did you mean '" + *likely + "'" : "the presets are " + all));
}

}  // namespace cleave::inline model
