#include "cleave/model/facts.h"

namespace cleave {

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
  const auto id = [&](const Json& value) { return value.as_int(-1, facts.vocab_size - 1); };
  if (json.has("eos_token_id")) {
    const Json eos = json.at("eos_token_id");
    if (eos.is(Json::Type::kArray)) {
      for (size_t i = 0; i < eos.size(); ++i) facts.eos_ids.push_back(id(eos.at(i)));
    } else {
      facts.eos_ids.push_back(id(eos));
    }
  }
  if (json.has("bos_token_id")) facts.bos_id = id(json.at("bos_token_id"));
  if (json.has("pad_token_id")) facts.pad_id = id(json.at("pad_token_id"));
}

}  // namespace cleave
