#include "cleave/model/facts.h"

namespace cleave::inline model {
namespace {

/// The default of a special id that config.json lacks, if the vocabulary has it.
std::optional<int64_t> default_id(const Json& json, std::string_view key,
                                  std::optional<int64_t> id) {
  const bool applies = id && *id < json.at("vocab_size").as_int() && !has_key(json, key);
  return applies ? id : std::nullopt;
}

}  // namespace

FactNames names_in(const Json& json, const FactNames& names) {
  constexpr FactNames kUsual;
  const auto present = [&json](const char* own, const char* usual) {
    if (std::string_view(own) == usual || !json.has(usual)) return own;
    const Json value = json.at(usual);
    if (json.has(own) && json.at(own).as_int() != value.as_int()) {
      value.fail(str(own, " is ", json.at(own).as_int(),
                     "; expected the same number, or only one of the two keys"));
    }
    return json.has(own) ? own : usual;
  };
  FactNames out = names;
  out.hidden = present(names.hidden, kUsual.hidden);
  out.num_layers = present(names.num_layers, kUsual.num_layers);
  out.num_heads = present(names.num_heads, kUsual.num_heads);
  out.max_positions = present(names.max_positions, kUsual.max_positions);
  return out;
}

ModelFacts read_facts(const Json& json, const FactNames& family) {
  const FactNames names = names_in(json, family);
  ModelFacts f;
  f.vocab_size = json.at("vocab_size").as_int(1, kMostTokens);
  f.hidden = json.at(names.hidden).as_int(1, kMostWidth);
  f.num_layers = json.at(names.num_layers).as_int(1, kMostLayers);
  f.num_heads = json.at(names.num_heads).as_int(1, kMostHeads);
  f.num_kv_heads = f.num_heads;
  f.max_positions = json.int_or(names.max_positions, names.default_positions, 1, kMostPositions);
  read_special_ids(json, f);
  if (const auto eos = default_id(json, "eos_token_id", names.default_eos)) f.eos_ids = {*eos};
  if (const auto pad = default_id(json, "pad_token_id", names.default_pad)) f.pad_id = pad;
  return f;
}

ModelFacts usual_facts(const Json& json) {
  ModelFacts f;
  f.vocab_size = json.int_or("vocab_size", 0, 1, kMostTokens);
  f.hidden = json.int_or("hidden_size", 0, 1, kMostWidth);
  f.num_layers = json.int_or("num_hidden_layers", 0, 1, kMostLayers);
  f.num_heads = json.int_or("num_attention_heads", 0, 1, kMostHeads);
  f.num_kv_heads = json.int_or("num_key_value_heads", f.num_heads, 1, kMostHeads);
  f.max_positions = json.int_or("max_position_embeddings", kMostPositions, 1, kMostPositions);
  if (f.vocab_size > 0) read_special_ids(json, f);
  return f;
}

void check_heads_divide(const Json& json, const ModelFacts& facts, const FactNames& family) {
  if (facts.hidden % facts.num_heads == 0) return;
  const FactNames names = names_in(json, family);
  json.at(names.hidden)
      .fail(str("it must be a multiple of ", names.num_heads, "=", facts.num_heads));
}

Activation read_activation(const Json& json, std::string_view key, std::string_view fallback) {
  const std::string name = json.string_or(key, fallback);
  try {
    return activation_from_name(name);
  } catch (const Error& error) {
    json.at(key).fail(error.what());
  }
}

double read_dropout(const Json& json, std::string_view key, double fallback) {
  const double p = json.number_or(key, fallback);
  if (!(p >= 0 && p < 1)) json.at(key).fail("expected a probability in [0, 1)");
  return p;
}

void read_special_ids(const Json& json, ModelFacts& facts) {
  // Small vocabularies often keep the family's default ids, which then never occur: GPT-2's 50256.
  const auto add_end = [&](const Json& value) {
    const int64_t id = value.as_int(-1, kMostTokens);
    if (id < facts.vocab_size) facts.eos_ids.push_back(id);
  };
  if (json.has("eos_token_id")) {
    const Json eos = json.at("eos_token_id");
    const bool is_list = eos.is(Json::Type::kArray);
    for (size_t i = 0; i < (is_list ? eos.size() : 1); ++i) add_end(is_list ? eos.at(i) : eos);
  }
  if (json.has("bos_token_id")) {
    const int64_t id = json.at("bos_token_id").as_int(-1, kMostTokens);
    if (id < facts.vocab_size) facts.bos_id = id;
  }
  if (json.has("pad_token_id")) {
    facts.pad_id = json.at("pad_token_id").as_int(-1, facts.vocab_size - 1);
  }
}

}  // namespace cleave::inline model
