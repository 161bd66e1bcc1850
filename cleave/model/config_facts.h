#pragma once
#include <string_view>

#include "cleave/model/model.h"

namespace cleave {

/// The largest sizes that a config.json may name: what is above is a damaged file, not a model.
inline constexpr int64_t kMostWidth = int64_t{1} << 20;
inline constexpr int64_t kMostLayers = 4096;
inline constexpr int64_t kMostPositions = int64_t{1} << 30;

/// What a family's config.json calls the sizes that every model has.
struct FactNames {
  const char* hidden = "hidden_size";
  const char* num_layers = "num_hidden_layers";
  const char* num_heads = "num_attention_heads";
  const char* max_positions = "max_position_embeddings";
  int64_t default_positions = 512;
};

/// The facts that all families read alike; as many KV heads as heads. Throws Error(kFormat) for
/// sizes that no model has.
ModelFacts read_facts(const Json& json, const FactNames& names);

/// For families whose heads divide the width. Throws Error(kFormat) where they do not.
void check_heads_divide(const Json& json, const ModelFacts& facts, const FactNames& names);

/// A dropout probability in [0, 1), `fallback` where nothing is said. Throws Error(kFormat).
double read_dropout(const Json& json, std::string_view key, double fallback);

}  // namespace cleave
