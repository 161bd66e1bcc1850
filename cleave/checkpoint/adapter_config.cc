#include "cleave/checkpoint/adapter_config.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "cleave/nn/linear.h"
#include "cleave/text/json.h"

namespace cleave::inline checkpoint {
namespace {

constexpr int64_t kMostRank = 65536;
constexpr double kMostAlpha = 1e6;  // as of --lora-alpha

/// Whether a value of adapter_config.json leaves its feature off.
bool is_off(const Json& value) {
  switch (value.type()) {
    case Json::Type::kBool:
      return !value.as_bool();
    case Json::Type::kString:
      return value.as_string().empty() || value.as_string() == "none";
    case Json::Type::kArray:
    case Json::Type::kObject:
      return value.size() == 0;
    default:
      return value.is(Json::Type::kNull);
  }
}

/// Refuses the settings that change what the adapter's tensors mean.
void refuse_unsupported(const Json& config) {
  for (const char* key : {"use_qalora", "use_bdlora", "lora_bias", "bias", "rank_pattern",
                          "alpha_pattern", "layer_replication", "trainable_token_indices",
                          "target_parameters", "alora_invocation_tokens", "arrow_config",
                          "kasa_config", "monteclora_config", "velora_config"}) {
    if (config.has(key) && !is_off(config.at(key))) {
      config.at(key).fail(
          "Cleave reads LoRA adapters without this setting; merge the adapter in PEFT, with "
          "merge_and_unload(), and give the merged model");
    }
  }
  // These start from changed base weights, which the adapter's files do not have.
  if (!config.has("init_lora_weights")) return;
  const Json start = config.at("init_lora_weights");
  const bool changes_base = start.is(Json::Type::kString) && start.as_string() != "gaussian" &&
                            start.as_string() != "eva" && start.as_string() != "orthogonal";
  if (changes_base) start.fail("expected true, false, \"gaussian\", \"orthogonal\" or \"eva\"");
}

/// A name or a list of names.
std::vector<std::string> names_in(const Json& value) {
  if (value.is(Json::Type::kString)) return {value.as_string()};
  std::vector<std::string> names;
  for (size_t i = 0; i < value.size(); ++i) names.push_back(value.at(i).as_string());
  return names;
}

}  // namespace

LoraOptions read_lora(const std::filesystem::path& folder) {
  const Json config = Json::parse_file((folder / kAdapterConfigName).string(), kConfigLimits);
  if (config.has("peft_type") && config.at("peft_type").as_string() != "LORA") {
    config.at("peft_type").fail("expected LORA, the only kind of adapter that Cleave reads");
  }
  refuse_unsupported(config);
  LoraOptions lora;
  lora.rank = config.int_or("r", 8, 1, kMostRank);
  lora.alpha = config.number_or("lora_alpha", 8, -kMostAlpha, kMostAlpha);
  lora.is_rank_stabilized = config.bool_or("use_rslora", false);
  lora.is_dora = config.bool_or("use_dora", false);
  lora.dropout = config.number_or("lora_dropout", 0, 0, 1);
  if (config.has("modules_to_save")) lora.trained_layers = names_in(config.at("modules_to_save"));
  if (!config.has("target_modules")) return lora;
  lora.targets = names_in(config.at("target_modules"));
  return lora;
}

std::string adapter_config_json(const LoraOptions& lora, Model& model, const std::string& base) {
  std::vector<std::string> paths;
  bool is_transposed = false;
  model.walk([&](Layer& layer) {
    const auto* linear = dynamic_cast<const Linear*>(&layer);
    if (linear == nullptr || !linear->has_lora()) return;
    paths.push_back(linear->path());
    is_transposed = is_transposed || linear->is_transposed();
  });
  nlohmann::ordered_json json;
  json["base_model_name_or_path"] = base;
  json["bias"] = "none";
  json["fan_in_fan_out"] = is_transposed;
  json["inference_mode"] = true;
  json["init_lora_weights"] = true;
  json["lora_alpha"] = lora.alpha;
  if (lora.alpha == std::floor(lora.alpha)) json["lora_alpha"] = static_cast<int64_t>(lora.alpha);
  json["lora_dropout"] = lora.dropout;
  json["modules_to_save"] = nullptr;
  if (!lora.trained_layers.empty()) json["modules_to_save"] = lora.trained_layers;
  json["peft_type"] = "LORA";
  json["r"] = lora.rank;
  json["target_modules"] = paths;
  json["task_type"] = nullptr;
  if (model.task() == "lm") json["task_type"] = "CAUSAL_LM";
  if (model.task() == "classify" && !lora.trained_layers.empty()) json["task_type"] = "SEQ_CLS";
  json["use_dora"] = lora.is_dora;
  json["use_rslora"] = lora.is_rank_stabilized;
  return json.dump(2) + "\n";
}

}  // namespace cleave::inline checkpoint
