#include "cleave/model/generation_config.h"

namespace cleave::inline model {
namespace {

/// A number between `low` and `high`; nothing where the file has no such key, or null.
std::optional<double> number(const Json& json, const char* key, double low, double high) {
  if (!json.has(key)) return std::nullopt;
  return json.number_or(key, 0, low, high);
}

std::optional<int64_t> integer(const Json& json, const char* key) {
  if (!json.has(key)) return std::nullopt;
  return json.int_or(key, 0, 0, kMostTokens);
}

std::vector<int64_t> end_ids(const Json& json, int64_t vocab_size) {
  std::vector<int64_t> ids;
  if (!json.has("eos_token_id")) return ids;
  const Json eos = json.at("eos_token_id");
  const bool is_list = eos.is(Json::Type::kArray);
  for (size_t i = 0; i < (is_list ? eos.size() : 1); ++i) {
    const int64_t id = (is_list ? eos.at(i) : eos).as_int(-1, kMostTokens);
    if (id >= 0 && id < vocab_size) ids.push_back(id);
  }
  return ids;
}

}  // namespace

std::filesystem::path generation_config_path(const ModelFolder& folder) {
  for (const std::string& of : {folder.path, folder.weights_path()}) {
    auto path = std::filesystem::path(of) / "generation_config.json";
    if (std::filesystem::exists(path)) return path;
  }
  return {};
}

GenerationConfig read_generation_config(const ModelFolder& folder, const ModelFacts& facts) {
  const auto path = generation_config_path(folder);
  if (path.empty()) return {.eos_ids = facts.eos_ids};
  const Json json = Json::parse_file(path.string());
  GenerationConfig config{.eos_ids = end_ids(json, facts.vocab_size),
                          .repetition_penalty = number(json, "repetition_penalty", 0.001, 1000),
                          .temperature = number(json, "temperature", 0, 1e6),
                          .top_p = number(json, "top_p", 0, 1),
                          .no_repeat_ngram_size = integer(json, "no_repeat_ngram_size"),
                          .top_k = integer(json, "top_k")};
  // Some files have 0 beside "do_sample": false; sampling cannot use it.
  if (config.temperature == 0.0) config.temperature.reset();
  if (config.top_p == 0.0) config.top_p.reset();
  return config;
}

}  // namespace cleave::inline model
