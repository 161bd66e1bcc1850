#include "cleave/verify/fuzz.h"

#include <array>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "cleave/base/error.h"
#include "cleave/model/model.h"

namespace cleave::inline verify {
namespace {

using Object = nlohmann::ordered_json;

/// The keys that model families use for the same number.
using Names = std::vector<const char*>;
const Names kLayers = {"num_hidden_layers", "n_layer", "n_layers"};
const Names kHeads = {"num_attention_heads", "n_head", "n_heads"};
const Names kKvHeads = {"num_key_value_heads"};
const Names kHidden = {"hidden_size", "n_embd", "dim"};
const Names kInner = {"intermediate_size", "n_inner", "moe_intermediate_size", "hidden_dim"};
const Names kHeadDim = {"head_dim"};
const Names kVocab = {"vocab_size"};
const Names kPositions = {"max_position_embeddings", "n_positions"};
constexpr std::array kRope = {"rope_scaling", "rope_parameters"};
constexpr std::array kSwitches = {"attention_bias", "mlp_bias", "tie_word_embeddings"};

class Draw {
 public:
  explicit Draw(uint64_t seed) : engine_(seed) {}
  /// A number in [low, high]. The modulo bias is negligible here.
  int64_t from(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(engine_() % static_cast<uint64_t>(high - low + 1));
  }
  bool coin() { return from(0, 1) == 1; }

 private:
  std::mt19937_64 engine_;
};

bool has(const Object& config, const Names& names) {
  for (const char* name : names) {
    if (config.contains(name) && config[name].is_number_integer()) return true;
  }
  return false;
}

void set(Object& config, const Names& names, int64_t value) {
  for (const char* name : names) {
    if (config.contains(name) && config[name].is_number_integer()) config[name] = value;
  }
}

/// The share of a head's dims that rotate.
double rotated_part(const Object& config) {
  constexpr const char* kKey = "partial_rotary_factor";
  const auto has_part = [&](const Object& in) {
    return in.is_object() && in.contains(kKey) && in[kKey].is_number();
  };
  for (const char* name : kRope) {
    if (config.contains(name) && has_part(config[name])) return config[name][kKey].get<double>();
  }
  return has_part(config) ? config[kKey].get<double>() : 1.0;
}

/// A number of dims of a head of which an even number rotates.
int64_t draw_head_dim(const Object& config, Draw& draw) {
  constexpr int64_t kMost = 256;
  const double part = rotated_part(config);
  const auto pairs_fit = [part](int64_t dim) {
    const auto rotated = static_cast<int64_t>(part * static_cast<double>(dim));
    return rotated >= 2 && rotated % 2 == 0;
  };
  int64_t dim = 2 * draw.from(1, 6);
  while (!pairs_fit(dim) && dim < kMost) dim += 2;
  return dim;
}

/// Makes a list that has one element per layer, or per pair of rotated dims, as long as needed.
void set_length(Object& config, const char* name, int64_t length) {
  if (!config.contains(name) || !config[name].is_array()) return;
  Object given = config[name];
  if (given.empty()) given.push_back(1.0);  // factors of heads of one dim
  Object& list = config[name] = Object::array();
  for (size_t i = 0; i < static_cast<size_t>(length); ++i) list.push_back(given[i % given.size()]);
}

void set_list_lengths(Object& config, int64_t num_layers, int64_t head_dim) {
  for (const char* name : {"layer_types", "no_rope_layers"}) set_length(config, name, num_layers);
  const auto rotated = static_cast<int64_t>(rotated_part(config) * static_cast<double>(head_dim));
  for (const char* rope : kRope) {
    if (!config.contains(rope)) continue;
    for (const char* name : {"short_factor", "long_factor"}) {
      set_length(config[rope], name, rotated / 2);
    }
  }
}

int64_t divisor_of(int64_t number, Draw& draw) {
  std::vector<int64_t> divisors;
  for (int64_t d = 1; d <= number; ++d) {
    if (number % d == 0) divisors.push_back(d);
  }
  return divisors[static_cast<size_t>(draw.from(0, std::ssize(divisors) - 1))];
}

/// Whether the model's family has what the configuration asks for; Mistral has no biases.
bool is_supported(const Object& config) {
  try {
    (void)make_model(Json::parse(config.dump(), "random configuration"));
    return true;
  } catch (const Error& error) {
    if (error.code() != Code::kFormat) throw;
    return false;
  }
}

}  // namespace

FuzzCase fuzz_case(const Json& config, int most_tp, uint64_t seed) {
  Object json = Object::parse(config.dump());
  Draw draw(seed);
  const auto tp = static_cast<int>(draw.from(1, most_tp));
  const int64_t heads = draw.from(tp, tp + 4);
  const int64_t head_dim = draw_head_dim(json, draw);
  const int64_t layers = draw.from(1, 2);
  set(json, kLayers, layers);
  set_list_lengths(json, layers, head_dim);
  set(json, kHeads, heads);
  set(json, kKvHeads, divisor_of(heads, draw));
  set(json, kHeadDim, head_dim);
  set(json, kHidden, has(json, kHeadDim) ? draw.from(3, 40) : heads * head_dim);
  set(json, kInner, draw.from(1, 60));
  set(json, kVocab, draw.from(2, 70));
  set(json, kPositions, draw.from(20, 40));
  for (auto& [key, value] : json.items()) {
    if (key.ends_with("_token_id")) value = nullptr;  // might be outside the new vocabulary
  }
  // RoBERTa's positions begin after it.
  if (json.contains("pad_token_id") && !is_supported(json)) json["pad_token_id"] = 0;
  for (const char* name : kSwitches) {
    if (!json.contains(name) || !json[name].is_boolean()) continue;
    const Object given = json[name];
    json[name] = draw.coin();
    if (!is_supported(json)) json[name] = given;
  }
  return {.config = Json::parse(json.dump(), "random configuration"),
          .tp = tp,
          .sequence_parallel = draw.coin()};
}

std::string describe(const FuzzCase& fuzz_case) {
  std::string text = str("tp ", fuzz_case.tp);
  if (fuzz_case.sequence_parallel) text += ", sequence parallel";
  const Object json = Object::parse(fuzz_case.config.dump());
  for (const Names& names :
       {kLayers, kHeads, kKvHeads, kHeadDim, kHidden, kInner, kVocab, kPositions}) {
    for (const char* name : names) {
      if (json.contains(name) && json[name].is_number_integer()) {
        text += str(", ", name, " ", json[name].get<int64_t>());
      }
    }
  }
  for (const char* name : kSwitches) {
    if (json.contains(name) && json[name] == true) text += str(", ", name);
  }
  return text;
}

}  // namespace cleave::inline verify
