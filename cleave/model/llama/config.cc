#include "cleave/model/llama/config.h"

#include <nlohmann/json.hpp>

namespace cleave {
namespace {

constexpr double kMostTheta = 1e30;
constexpr double kLeastFactor = 1e-6, kMostFactor = 1e6;  // of rotary scaling

/// Keys of a rope_scaling or rope_parameters object.
void read_scaling(const Json& json, RotaryOptions& rotary, int64_t max_positions) {
  using Scaling = RotaryOptions::Scaling;
  const std::string type = json.string_or("rope_type", json.string_or("type", "default"));
  if (type == "default") return;
  if (type != "linear" && type != "llama3") {
    json.fail(str("rope_type '", type, "' is not supported; expected default, linear or llama3"));
  }
  rotary.scaling = type == "linear" ? Scaling::kLinear : Scaling::kLlama3;
  rotary.factor = json.at("factor").as_number(kLeastFactor, kMostFactor);
  if (type == "linear") return;
  rotary.low_freq_factor = json.at("low_freq_factor").as_number(kLeastFactor, kMostFactor);
  rotary.high_freq_factor = json.at("high_freq_factor").as_number(kLeastFactor, kMostFactor);
  rotary.original_positions =
      json.int_or("original_max_position_embeddings", max_positions, 1, kMostPositions);
  if (!(rotary.high_freq_factor > rotary.low_freq_factor)) {
    json.at("high_freq_factor").fail("expected a number above low_freq_factor");
  }
}

RotaryOptions read_rotary(const Json& json, int64_t head_dim, int64_t max_positions) {
  const auto theta = [](const Json& from, double fallback) {
    return from.number_or("rope_theta", fallback, 1, kMostTheta);
  };
  RotaryOptions rotary{.head_dim = head_dim, .theta = theta(json, 10000)};
  if (json.has("rope_parameters")) {
    const Json rope = json.at("rope_parameters");
    rotary.theta = theta(rope, rotary.theta);
    read_scaling(rope, rotary, max_positions);
  } else if (json.has("rope_scaling")) {
    read_scaling(json.at("rope_scaling"), rotary, max_positions);
  }
  return rotary;
}

}  // namespace

LlamaConfig LlamaConfig::from_json(const Json& json) {
  LlamaConfig c;
  ModelFacts& f = c.facts;
  f = read_facts(json, {.default_positions = 2048, .default_eos = 2});
  f.num_kv_heads = json.int_or("num_key_value_heads", f.num_heads, 1, f.num_heads);
  if (f.num_heads % f.num_kv_heads != 0) {
    json.at("num_key_value_heads").fail(str("it must divide num_attention_heads=", f.num_heads));
  }
  c.intermediate = json.at("intermediate_size").as_int(1, kMostWidth);
  c.head_dim = json.int_or("head_dim", f.hidden / f.num_heads, 1, kMostHeads);
  const bool is_divisible = f.hidden % f.num_heads == 0;
  if (!json.has("head_dim") && (!is_divisible || c.head_dim > kMostHeads)) {
    json.at("hidden_size")
        .fail(str("without head_dim it must be a multiple of num_attention_heads=", f.num_heads,
                  ", at most ", kMostHeads, " times it"));
  }
  if (f.num_heads * c.head_dim > kMostWidth) {
    json.at("head_dim")
        .fail(str(f.num_heads, " heads of this size are wider than ", kMostWidth,
                  "; check it and num_attention_heads"));
  }
  if (c.head_dim % 2 != 0) {
    json.at(json.has("head_dim") ? "head_dim" : "hidden_size")
        .fail(str("head_dim=", c.head_dim, " must be even: rotary positions rotate pairs"));
  }
  c.norm_eps = json.number_or("rms_norm_eps", 1e-6, 0, 1);
  c.init_range = json.number_or("initializer_range", 0.02, 0, kMostInitRange);
  c.attention_bias = json.bool_or("attention_bias", false);
  c.mlp_bias = json.bool_or("mlp_bias", false);
  c.tied = json.bool_or("tie_word_embeddings", false);
  c.activation = read_activation(json, "hidden_act", "silu");
  c.rotary = read_rotary(json, c.head_dim, f.max_positions);
  return c;
}

Json llama_config_from_meta(const Json& params, int64_t vocab_size) {
  const int64_t dim = params.at("dim").as_int(1, kMostWidth);
  const int64_t heads = params.at("n_heads").as_int(1, kMostHeads);
  if (dim % heads != 0) params.at("dim").fail(str("it must be a multiple of n_heads=", heads));
  const int64_t multiple = params.int_or("multiple_of", 256, 1, kMostWidth);
  // Meta's rule if the width is not given: two thirds of 4 dim, scaled, rounded up.
  auto width = static_cast<int64_t>(static_cast<double>(8 * dim / 3) *
                                    params.number_or("ffn_dim_multiplier", 1, 1e-3, 1e3));
  width = (width + multiple - 1) / multiple * multiple;
  const int64_t stated = params.int_or("vocab_size", -1, -1, kMostTokens);
  nlohmann::ordered_json config = {
      {"architectures", {"LlamaForCausalLM"}},
      {"model_type", "llama"},
      {"vocab_size", stated > 0 ? stated : vocab_size},
      {"hidden_size", dim},
      {"intermediate_size", params.int_or("hidden_dim", width, 1, kMostWidth)},
      {"num_hidden_layers", params.at("n_layers").as_int(1, kMostLayers)},
      {"num_attention_heads", heads},
      {"num_key_value_heads", params.int_or("n_kv_heads", heads, 1, heads)},
      {"head_dim", dim / heads},
      {"hidden_act", "silu"},
      {"max_position_embeddings", params.int_or("max_seq_len", 2048, 1, kMostPositions)},
      {"rms_norm_eps", params.number_or("norm_eps", 1e-5, 0, 1)},
      {"rope_theta", params.number_or("rope_theta", 10000, 1, kMostTheta)},
      {"tie_word_embeddings", false}};
  if (params.bool_or("use_scaled_rope", false)) {
    config["rope_scaling"] = {{"rope_type", "llama3"},
                              {"factor", 8.0},
                              {"low_freq_factor", 1.0},
                              {"high_freq_factor", 4.0},
                              {"original_max_position_embeddings", 8192}};
  }
  return Json::parse(config.dump(), "params.json");
}

}  // namespace cleave
