#include "cleave/checkpoint/adapter_config.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <nlohmann/json.hpp>

#include "cleave/model/label_task.h"
#include "cleave/nn/linear.h"
#include "cleave/text/json.h"

namespace cleave::inline checkpoint {
namespace {

constexpr int64_t kMostRank = 65536;
constexpr double kMostAlpha = 1e6;  // as of --lora-alpha

/// The values of a setting that differs between layers, by the names of the layers.
template <class Value>
using Pattern = std::vector<std::pair<std::string, Value>>;

/// Reads rank_pattern or alpha_pattern; `read` reads a value. PEFT takes the names for regular
/// expressions.
template <class Value, class Read>
Pattern<Value> read_pattern(const Json& config, std::string_view key, const Read& read) {
  Pattern<Value> pattern;
  if (!config.has(key)) return pattern;
  const Json entries = config.at(key);
  if (!entries.is(Json::Type::kObject)) entries.fail("expected an object of layers and numbers");
  for (size_t i = 0; i < entries.size(); ++i) {
    const std::string& name = entries.key(i);
    const std::string_view path = std::string_view(name).substr(name.starts_with('^') ? 1 : 0);
    const bool is_path = std::all_of(path.begin(), path.end(), [](char c) {
      return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.';
    });
    if (!is_path || path.empty()) {
      entries.fail(str("'", name, "' is no name of layers, such as q_proj; ", kMergeInPeft));
    }
    pattern.emplace_back(name, read(entries.at(i)));
  }
  return pattern;
}

/// The value of the first name that fits the path.
template <class Value>
Value value_of(const Pattern<Value>& pattern, std::string_view path, Value fallback) {
  for (const auto& [name, value] : pattern) {
    const bool fits = name.starts_with('^') ? path == std::string_view(name).substr(1)
                                            : path == name || path.ends_with("." + name);
    if (fits) return value;
  }
  return fallback;
}

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
  for (const char* key : {"use_qalora", "use_bdlora", "lora_bias", "layer_replication",
                          "trainable_token_indices", "target_parameters", "alora_invocation_tokens",
                          "arrow_config", "kasa_config", "monteclora_config", "velora_config"}) {
    if (config.has(key) && !is_off(config.at(key))) {
      config.at(key).fail(str("Cleave reads LoRA adapters without this setting; ", kMergeInPeft));
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

LoraOptions AdapterSettings::of(std::string_view path) const {
  LoraOptions options = lora;
  options.rank = value_of(ranks, path, lora.rank);
  options.alpha = value_of(alphas, path, lora.alpha);
  return options;
}

AdapterSettings read_adapter(const std::filesystem::path& folder) {
  const Json config = Json::parse_file((folder / kAdapterConfigName).string(), kConfigLimits);
  if (config.has("peft_type") && config.at("peft_type").as_string() != "LORA") {
    config.at("peft_type").fail("expected LORA, the only kind of adapter that Cleave reads");
  }
  refuse_unsupported(config);
  const std::string bias = config.string_or("bias", "none");
  if (bias != "none" && bias != "all" && bias != "lora_only") {
    config.at("bias").fail("expected \"none\", \"all\" or \"lora_only\"");
  }
  AdapterSettings settings;
  settings.has_biases = bias != "none";
  settings.ranks = read_pattern<int64_t>(
      config, "rank_pattern", [](const Json& value) { return value.as_int(1, kMostRank); });
  settings.alphas = read_pattern<double>(config, "alpha_pattern", [](const Json& value) {
    return value.as_number(-kMostAlpha, kMostAlpha);
  });
  LoraOptions& lora = settings.lora;
  lora.rank = config.int_or("r", 8, 1, kMostRank);
  lora.alpha = config.number_or("lora_alpha", 8, -kMostAlpha, kMostAlpha);
  lora.is_rank_stabilized = config.bool_or("use_rslora", false);
  lora.is_dora = config.bool_or("use_dora", false);
  lora.dropout = config.number_or("lora_dropout", 0, 0, 1);
  if (config.has("modules_to_save")) lora.trained_layers = names_in(config.at("modules_to_save"));
  if (config.has("target_modules")) lora.targets = names_in(config.at("target_modules"));
  return settings;
}

LoraOptions read_lora(const std::filesystem::path& folder) {
  const AdapterSettings settings = read_adapter(folder);
  const bool is_plain = settings.ranks.empty() && settings.alphas.empty() && !settings.has_biases;
  CLEAVE_CHECK(is_plain, Code::kFormat, (folder / kAdapterConfigName).string(),
               " has rank_pattern, alpha_pattern or biases, with which Cleave trains no adapter; ",
               "merge it with `cleave convert`, and train the merged model");
  return settings.lora;
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
  if (labels_sequences(model.task()) && !lora.trained_layers.empty()) json["task_type"] = "SEQ_CLS";
  json["use_dora"] = lora.is_dora;
  json["use_rslora"] = lora.is_rank_stabilized;
  return json.dump(2) + "\n";
}

}  // namespace cleave::inline checkpoint
