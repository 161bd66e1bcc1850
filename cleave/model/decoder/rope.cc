#include <algorithm>
#include <array>
#include <cmath>

#include "cleave/model/decoder/config.h"

namespace cleave::inline model {
namespace {

using Scaling = RotaryOptions::Scaling;

constexpr double kMostTheta = 1e30;
constexpr double kLeastFactor = 1e-6, kMostFactor = 1e6;  // of rotary scaling
constexpr double kMostExponent = 1e3;                     // mscale of yarn
/// Keys of rope_scaling and rope_parameters, of all types. The first three go with every type.
constexpr std::array<std::string_view, 19> kKeys = {
    "rope_type", "type", "rope_theta", "partial_rotary_factor", "factor", "low_freq_factor",
    "high_freq_factor", "original_max_position_embeddings", "attention_factor", "beta_fast",
    "beta_slow", "mscale", "mscale_all_dim", "truncate", "short_factor", "long_factor",
    // Written by older programs, without effect.
    "short_mscale", "long_mscale", "finetuned"};

double factor_at(const Json& json, std::string_view key) {
  return json.at(key).as_number(kLeastFactor, kMostFactor);
}

void read_llama3(const Json& rope, RotaryOptions& rotary) {
  rotary.factor = factor_at(rope, "factor");
  rotary.low_freq_factor = factor_at(rope, "low_freq_factor");
  rotary.high_freq_factor = factor_at(rope, "high_freq_factor");
  if (!(rotary.high_freq_factor > rotary.low_freq_factor)) {
    rope.at("high_freq_factor").fail("expected a number above low_freq_factor");
  }
}

/// How much longer sequences are than in the original training: `factor`, else by the positions.
double stretch_of(const Json& rope, const RotaryOptions& rotary, int64_t max_positions) {
  if (rope.has("factor")) return factor_at(rope, "factor");
  const double stretch =
      static_cast<double>(max_positions) / static_cast<double>(rotary.original_positions);
  if (!(stretch >= kLeastFactor && stretch <= kMostFactor)) {
    rope.fail(str("max_position_embeddings=", max_positions, " is ", stretch,
                  " times original_max_position_embeddings=", rotary.original_positions,
                  "; expected a factor in [", kLeastFactor, ", ", kMostFactor, "]"));
  }
  return stretch;
}

/// The factor of cos and sin by attention_factor, else by `fallback`.
double magnitude_of(const Json& rope, double fallback) {
  return rope.number_or("attention_factor", fallback, kLeastFactor, kMostFactor);
}

/// Source: arXiv:2309.00071, section 3.4, with the exponents of the numerator and denominator.
double yarn_magnitude(const Json& rope, double factor) {
  const auto part = [&](double exponent) {
    return factor <= 1 ? 1 : 0.1 * exponent * std::log(factor) + 1;
  };
  const double mscale = rope.number_or("mscale", 0, 0, kMostExponent);
  const double all = rope.number_or("mscale_all_dim", 0, 0, kMostExponent);
  return mscale > 0 && all > 0 ? part(mscale) / part(all) : part(1);
}

void read_yarn(const Json& rope, int64_t max_positions, RotaryOptions& rotary) {
  if (!(rotary.theta > 1)) rope.fail("yarn needs a rope_theta above 1");
  rotary.factor = stretch_of(rope, rotary, max_positions);
  rotary.magnitude = magnitude_of(rope, yarn_magnitude(rope, rotary.factor));
  const auto beta = [&](std::string_view key, double fallback) {
    const double value = rope.number_or(key, fallback, 0, kMostFactor);
    return value > 0 ? value : fallback;
  };
  rotary.beta_fast = beta("beta_fast", 32);
  rotary.beta_slow = beta("beta_slow", 1);
  rotary.truncates = rope.bool_or("truncate", true);
}

std::vector<double> read_factors(const Json& rope, std::string_view key, int64_t count) {
  const Json list = rope.at(key);
  if (!list.is(Json::Type::kArray) || static_cast<int64_t>(list.size()) != count) {
    list.fail(str("expected a list of ", count, " numbers, one for each pair of rotated dims"));
  }
  std::vector<double> factors;
  for (size_t i = 0; i < list.size(); ++i) {
    factors.push_back(list.at(i).as_number(kLeastFactor, kMostFactor));
  }
  return factors;
}

void read_longrope(const Json& rope, int64_t max_positions, RotaryOptions& rotary) {
  rotary.short_factors = read_factors(rope, "short_factor", rotary.head_dim / 2);
  rotary.long_factors = read_factors(rope, "long_factor", rotary.head_dim / 2);
  const double stretch = stretch_of(rope, rotary, max_positions);
  const auto original = static_cast<double>(std::max<int64_t>(rotary.original_positions, 2));
  rotary.magnitude =
      magnitude_of(rope, stretch <= 1 ? 1 : std::sqrt(1 + std::log(stretch) / std::log(original)));
}

std::string type_of(const Json& rope, const DecoderDefaults& defaults) {
  std::string type = rope.string_or("rope_type", rope.string_or("type", "default"));
  if (!defaults.has_phi3_rotary || type == "default") return type;
  if (type == "su" || type == "yarn" || type == "longrope") return "longrope";
  rope.fail(str("rope_type '", type, "' is not supported; expected default or longrope"));
}

void read_scaling(const Json& rope, const std::string& type, int64_t max_positions,
                  RotaryOptions& rotary) {
  if (type == "default") return;
  if (type == "linear") {
    rotary.scaling = Scaling::kLinear;
    rotary.factor = factor_at(rope, "factor");
  } else if (type == "dynamic") {
    // It changes the frequencies of sequences beyond max_position_embeddings, which are refused.
    (void)factor_at(rope, "factor");
  } else if (type == "llama3") {
    rotary.scaling = Scaling::kLlama3;
    read_llama3(rope, rotary);
  } else if (type == "yarn") {
    rotary.scaling = Scaling::kYarn;
    read_yarn(rope, max_positions, rotary);
  } else if (type == "longrope") {
    rotary.scaling = Scaling::kLongRope;
    read_longrope(rope, max_positions, rotary);
  } else {
    rope.fail(str("rope_type '", type,
                  "' is not supported; expected default, linear, dynamic, llama3, yarn or "
                  "longrope"));
  }
}

void check_keys(const Json& rope) {
  for (size_t i = 0; i < rope.size(); ++i) {
    const std::string& key = rope.key(i);
    if (!rope.has(key) || std::find(kKeys.begin(), kKeys.end(), key) != kKeys.end()) continue;
    rope.at(key).fail("this setting of rotary positions is not supported");
  }
}

/// How many dims of a head rotate.
int64_t rotated_dims(const Json& json, const Json& rope, int64_t head_dim, bool is_supported) {
  constexpr const char* kKey = "partial_rotary_factor";
  const Json& from = rope.has(kKey) ? rope : json;
  const double part = from.number_or(kKey, 1, 0, 1);
  if (part == 1) return head_dim;
  if (!is_supported) from.at(kKey).fail("it is not supported for this model_type; expected 1");
  const auto dims = static_cast<int64_t>(static_cast<double>(head_dim) * part);
  if (dims < 2 || dims % 2 != 0) {
    from.at(kKey).fail(str("it rotates ", dims, " of ", head_dim,
                           " dims of a head; expected an even number of 2 or more"));
  }
  return dims;
}

/// The member `key`; empty if it is missing, null or an empty object.
std::optional<Json> settings_at(const Json& json, std::string_view key) {
  if (!json.has(key) || json.at(key).size() == 0) return std::nullopt;
  return json.at(key);
}

/// original_max_position_embeddings, which some files have as 8192.0.
int64_t original_positions(const Json& settings, int64_t absent) {
  constexpr const char* kKey = "original_max_position_embeddings";
  const double value =
      settings.number_or(kKey, static_cast<double>(absent), 1, static_cast<double>(kMostPositions));
  if (value != std::floor(value)) settings.at(kKey).fail("expected an integer");
  return static_cast<int64_t>(value);
}

/// Reads the object `rope` of config.json. Without one, `theta` is the only setting.
RotaryOptions read_rope(const Json& json, const std::optional<Json>& settings, double theta,
                        const DecoderConfig& c, const DecoderDefaults& defaults) {
  const Json& rope = settings.value_or(json);
  RotaryOptions rotary{.head_dim = rotated_dims(json, rope, c.head_dim, defaults.has_phi3_rotary),
                       .theta = theta};
  if (!settings) return rotary;
  check_keys(rope);
  rotary.theta = rope.number_or("rope_theta", theta, 1, kMostTheta);
  constexpr int64_t kPhi3Original = 4096;
  const int64_t inner = original_positions(rope, c.facts.max_positions);
  rotary.original_positions =
      original_positions(json, defaults.has_phi3_rotary ? kPhi3Original : inner);
  read_scaling(rope, type_of(rope, defaults), c.facts.max_positions, rotary);
  return rotary;
}

}  // namespace

RotaryOptions read_rotary(const Json& json, const DecoderConfig& c,
                          const DecoderDefaults& defaults) {
  const double theta = read_theta(json, "rope_theta", defaults.theta);
  const std::optional<Json> older = settings_at(json, "rope_scaling");
  return read_rope(json, older ? older : settings_at(json, "rope_parameters"), theta, c, defaults);
}

double read_theta(const Json& json, std::string_view key, double absent) {
  return json.number_or(key, absent, 1, kMostTheta);
}

void read_layer_rotary(const Json& json, const LayerThetas& thetas, DecoderConfig& c) {
  constexpr std::string_view kFull = "full_attention", kSliding = "sliding_attention";
  std::optional<Json> full = settings_at(json, "rope_scaling"), sliding;
  if (const std::optional<Json> types = settings_at(json, "rope_parameters")) {
    for (size_t i = 0; i < types->size(); ++i) {
      const std::string& type = types->key(i);
      if (type == kFull || type == kSliding || !types->has(type)) continue;
      types->at(type).fail(str("expected settings for ", kFull, " or ", kSliding));
    }
    if (full && types->has(kFull)) {
      full->fail(str("rope_parameters has settings for ", kFull, " too; remove one of them"));
    }
    if (!full) full = settings_at(*types, kFull);
    sliding = settings_at(*types, kSliding);
  }
  for (const auto& settings : {full, sliding}) {
    if (settings && type_of(*settings, {}) == "longrope") {
      settings->fail("longrope is not supported for this model_type");
    }
  }
  c.rotary = read_rope(json, full, thetas.full, c, {});
  const RotaryOptions of_sliding = read_rope(json, sliding, thetas.sliding, c, {});
  for (DecoderLayer& layer : c.layers) {
    if (layer.window > 0) layer.rotary = of_sliding;
  }
}

}  // namespace cleave::inline model
