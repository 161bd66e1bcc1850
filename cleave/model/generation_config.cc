#include "cleave/model/generation_config.h"

#include <algorithm>
#include <span>

namespace cleave::inline model {
namespace {

/// A number between `low` and `high`; nothing where the file has no such key, or null.
std::optional<double> number(const Json& json, const char* key, double low, double high) {
  if (!json.has(key)) return std::nullopt;
  return json.number_or(key, 0, low, high);
}

std::optional<int64_t> integer(const Json& json, const char* key, int64_t low = 0) {
  if (!json.has(key)) return std::nullopt;
  return std::max<int64_t>(json.int_or(key, 0, low, kMostTokens), 0);
}

/// true, false or "never", as the flag spells them.
std::optional<std::string> early_stopping(const Json& json) {
  constexpr const char* kKey = "early_stopping";
  if (!json.has(kKey)) return std::nullopt;
  const Json value = json.at(kKey);
  if (value.is(Json::Type::kBool)) return value.as_bool() ? "true" : "false";
  if (value.is(Json::Type::kString) && value.as_string() == "never") return "never";
  value.fail("expected true, false or \"never\"");
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

/// A key that Cleave does not use, and the number that has no effect in transformers either.
struct UnusedKey {
  const char* name;
  double neutral = 0;
};

constexpr UnusedKey kUnused[] = {{"bad_words_ids"},
                                 {"suppress_tokens"},
                                 {"begin_suppress_tokens"},
                                 {"sequence_bias"},
                                 {"forced_eos_token_id"},
                                 {"stop_strings"},
                                 {"min_length"},
                                 {"min_new_tokens"},
                                 {"exponential_decay_length_penalty"},
                                 {"guidance_scale", 1},
                                 {"encoder_repetition_penalty", 1},
                                 {"encoder_no_repeat_ngram_size"},
                                 {"watermarking_config"},
                                 {"num_beams", 1}};
constexpr UnusedKey kUnusedInSampling[] = {
    {"min_p"}, {"typical_p", 1}, {"epsilon_cutoff"}, {"eta_cutoff"}, {"top_h"}};
constexpr UnusedKey kUnusedInBeamSearch[] = {{"renormalize_logits"}};

/// Those of the keys that the file sets.
std::vector<std::string> set_keys(const Json& json, std::span<const UnusedKey> keys) {
  std::vector<std::string> out;
  for (const auto& [name, neutral] : keys) {
    if (!json.has(name)) continue;
    const Json value = json.at(name);
    const bool is_empty =
        (value.is(Json::Type::kBool) && !value.as_bool()) ||
        ((value.is(Json::Type::kArray) || value.is(Json::Type::kObject)) && value.size() == 0);
    const bool is_neutral = value.is(Json::Type::kNumber) && value.as_number() == neutral;
    if (!is_empty && !is_neutral) out.emplace_back(name);
  }
  return out;
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
  const bool has_file = !path.empty();
  const Json json = has_file ? Json::parse_file(path.string()) : folder.config;
  GenerationConfig config{.eos_ids = has_file ? end_ids(json, facts.vocab_size) : facts.eos_ids,
                          .repetition_penalty = number(json, "repetition_penalty", 0.001, 1000),
                          .temperature = number(json, "temperature", 0, 1e6),
                          .top_p = number(json, "top_p", 0, 1),
                          .length_penalty = number(json, "length_penalty", -100, 100),
                          .no_repeat_ngram_size = integer(json, "no_repeat_ngram_size"),
                          .top_k = integer(json, "top_k", -1),  // -1 is off, as in vLLM
                          .early_stopping = early_stopping(json),
                          .file = has_file ? "generation_config.json" : "config.json",
                          .unused = set_keys(json, kUnused),
                          .unused_in_sampling = set_keys(json, kUnusedInSampling),
                          .unused_in_beam_search = set_keys(json, kUnusedInBeamSearch)};
  // Some files have 0 beside "do_sample": false; sampling cannot use it.
  if (config.temperature == 0.0) config.temperature.reset();
  if (config.top_p == 0.0) config.top_p.reset();
  return config;
}

}  // namespace cleave::inline model
