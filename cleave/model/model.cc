#include "cleave/model/model.h"

namespace cleave {

DTensor Model::forward(const DTensor& ids, const Context& context) {
  DTensor x = ids;
  for (Layer* layer : sequence()) x = (*layer)(x, context);
  return x;
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
