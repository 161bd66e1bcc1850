#include "cleave/model/config_facts.h"

namespace cleave {

ModelFacts read_facts(const Json& json, const FactNames& names) {
  ModelFacts f;
  f.vocab_size = json.at("vocab_size").as_int(1, int64_t{1} << 31);
  f.hidden = json.at(names.hidden).as_int(1, kMostWidth);
  f.num_layers = json.at(names.num_layers).as_int(1, kMostLayers);
  f.num_heads = json.at(names.num_heads).as_int(1, kMostWidth);
  f.num_kv_heads = f.num_heads;
  f.max_positions = json.int_or(names.max_positions, names.default_positions, 1, kMostPositions);
  read_special_ids(json, f);
  return f;
}

void check_heads_divide(const Json& json, const ModelFacts& facts, const FactNames& names) {
  if (facts.hidden % facts.num_heads == 0) return;
  json.at(names.hidden)
      .fail(str("it must be a multiple of ", names.num_heads, "=", facts.num_heads));
}

double read_dropout(const Json& json, std::string_view key, double fallback) {
  const double p = json.number_or(key, fallback);
  if (!(p >= 0 && p < 1)) json.at(key).fail("expected a probability in [0, 1)");
  return p;
}

}  // namespace cleave
