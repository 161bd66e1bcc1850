#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cleave/nn/layer_options.h"
#include "cleave/text/json.h"

namespace cleave::inline model {

/// Facts about a model of any family.
struct ModelFacts {
  int64_t vocab_size = 0;
  int64_t max_positions = 0;  ///< longest sequence
  int64_t num_layers = 0;
  int64_t hidden = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  std::vector<int64_t> eos_ids;
  std::optional<int64_t> bos_id, pad_id;
  std::vector<std::string> labels;  ///< names of a classifier's classes, by number
};

/// Bounds on the numbers of a config.json. All heads together are at most kMostWidth wide too, so a
/// model has fewer than 2^57 weights, and layers x width x positions is at most 2^60: numbers of
/// weights, of their bytes and of operations per token fit in 63 bits.
inline constexpr int64_t kMostWidth = int64_t{1} << 20;
inline constexpr int64_t kMostHeads = int64_t{1} << 16;  // and dims of a head
inline constexpr int64_t kMostLayers = 4096;
inline constexpr int64_t kMostExperts = 1024;  // of a layer; together at most kMostWidth wide
inline constexpr int64_t kMostExpertsOfModel = int64_t{1} << 16;
inline constexpr int64_t kMostPositions = int64_t{1} << 28;
inline constexpr int64_t kMostTokens = INT32_MAX;
inline constexpr double kMostInitRange = 1e3;
/// Limits of config.json itself.
inline constexpr JsonLimits kConfigLimits = {
    .max_bytes = uint64_t{4} << 20, .max_depth = 64, .max_values = size_t{1} << 18};

/// A family's keys in config.json for the sizes that every model has.
struct FactNames {
  const char* hidden = "hidden_size";
  const char* num_layers = "num_hidden_layers";
  const char* num_heads = "num_attention_heads";
  const char* max_positions = "max_position_embeddings";
  int64_t default_positions = 512;
  /// Special ids if config.json lacks the key (null means no id). transformers' defaults.
  std::optional<int64_t> default_eos{}, default_pad{};
};

/// The keys that a config.json has: transformers also reads the usual keys where a family has keys
/// of its own, such as hidden_size for n_embd of GPT-2. Throws Error(kFormat) if two differ.
FactNames names_in(const Json& json, const FactNames& names);

/// Reads the facts that all families have, by names_in(); the number of KV heads is that of heads.
/// Default ids outside the vocabulary are dropped. Throws Error(kFormat) for sizes out of bounds.
ModelFacts read_facts(const Json& json, const FactNames& family);

/// The facts of a user's own model, from the keys that most families use: vocab_size, hidden_size,
/// num_hidden_layers, num_attention_heads, num_key_value_heads, max_position_embeddings and the
/// special ids. Sizes without a key are 0; positions without one are kMostPositions. Throws
/// Error(kFormat) for sizes out of bounds.
ModelFacts usual_facts(const Json& json);

/// Throws Error(kFormat) unless the number of heads divides the width.
void check_heads_divide(const Json& json, const ModelFacts& facts, const FactNames& family);

/// Reads the activation's name. Throws Error(kFormat) naming key, value and byte.
Activation read_activation(const Json& json, std::string_view key, std::string_view fallback);

/// A probability in [0, 1). Throws Error(kFormat).
double read_dropout(const Json& json, std::string_view key, double fallback);

/// Reads eos_token_id (a number or a list), bos_token_id and pad_token_id of a config.json;
/// vocab_size is set already. Ends and begins outside the vocabulary are dropped. Throws
/// Error(kFormat) for a pad id outside it, and for ids that no vocabulary can have.
void read_special_ids(const Json& json, ModelFacts& facts);

/// Names of the classes in a config.json: id2label, else LABEL_0 ... for num_labels (default 2).
/// Throws Error(kFormat) for duplicate or missing numbers.
std::vector<std::string> read_labels(const Json& json);

/// The task of a decoder's head, which `architectures` in config.json names: "lm" for the output
/// matrix; for ...ForSequenceClassification that of label_task(), and `facts` gets the labels.
/// Throws Error(kFormat) also for heads that Cleave lacks.
std::string read_decoder_task(const Json& json, ModelFacts& facts);

/// The config.json of a classifier with the same layers: sets the architecture and the label names.
/// One label is that of a regression. A family without a classifier keeps its architecture.
Json classifier_config(const Json& config, const std::vector<std::string>& labels);

/// Whether the object has the key, also with null.
inline bool has_key(const Json& json, std::string_view key) {
  for (size_t i = 0; i < json.size(); ++i) {
    if (json.key(i) == key) return true;
  }
  return false;
}

/// A copy of a config.json with `key` set to a text.
Json with_key(const Json& config, std::string_view key, std::string_view value);

/// A named configuration.
struct Preset {
  std::string name;
  std::string config_json;  ///< its config.json, with the vocabulary of the published model
};

}  // namespace cleave::inline model
