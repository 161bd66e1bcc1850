#include "cleave/model/decoder/config.h"

#include "cleave/model/facts.h"
#include "cleave/model/other_settings.h"

namespace cleave::inline model {
namespace {

constexpr const char* kFull = "full_attention";
constexpr const char* kSliding = "sliding_attention";

void read_heads(const Json& json, const DecoderDefaults& defaults, DecoderConfig& c) {
  ModelFacts& f = c.facts;
  const int64_t kv_heads =
      has_key(json, "num_key_value_heads") ? f.num_heads : defaults.kv_heads.value_or(f.num_heads);
  f.num_kv_heads = json.int_or("num_key_value_heads", kv_heads, 1, f.num_heads);
  if (f.num_kv_heads > f.num_heads || f.num_heads % f.num_kv_heads != 0) {
    json.at(json.has("num_key_value_heads") ? "num_key_value_heads" : "num_attention_heads")
        .fail(json.has("num_key_value_heads")
                  ? str("it must divide num_attention_heads=", f.num_heads)
                  : str("without num_key_value_heads it must be a multiple of ", f.num_kv_heads));
  }
  const bool computes_dim =
      !json.has("head_dim") && (!defaults.head_dim || has_key(json, "head_dim"));
  const int64_t computed = f.hidden / f.num_heads;
  c.head_dim = json.int_or(
      "head_dim", computes_dim ? computed : defaults.head_dim.value_or(computed), 1, kMostHeads);
  const bool is_divisible = f.hidden % f.num_heads == 0;
  if (computes_dim && (!is_divisible || c.head_dim > kMostHeads)) {
    json.at("hidden_size")
        .fail(str("without head_dim it must be a multiple of num_attention_heads=", f.num_heads,
                  ", at most ", kMostHeads, " times it"));
  }
  if (f.num_heads * c.head_dim > kMostWidth) {
    json.at(json.has("head_dim") ? "head_dim" : "num_attention_heads")
        .fail(str(f.num_heads, " heads of this size are wider than ", kMostWidth,
                  "; check it and num_attention_heads"));
  }
  if (c.head_dim % 2 != 0) {
    json.at(json.has("head_dim") ? "head_dim" : "hidden_size")
        .fail(str("head_dim=", c.head_dim, " must be even: rotary positions rotate pairs"));
  }
}

/// The key of the number of experts. transformers 5 writes num_local_experts for families whose
/// published files have num_experts.
const char* experts_key(const Json& json) {
  if (!json.has("num_experts")) return "num_local_experts";
  const Json value = json.at("num_experts");
  if (json.has("num_local_experts") && json.at("num_local_experts").as_int() != value.as_int()) {
    value.fail(str("num_local_experts is ", json.at("num_local_experts").as_int(),
                   "; expected the same number, or only one of the two keys"));
  }
  return "num_experts";
}

}  // namespace

DecoderConfig read_decoder(const Json& json, const DecoderDefaults& defaults) {
  DecoderConfig c;
  c.facts = read_facts(json, {.default_positions = defaults.positions,
                              .default_eos = defaults.eos,
                              .default_pad = defaults.pad});
  c.task = read_decoder_task(json, c.facts);
  refuse_later_tokens(json);
  refuse_other_settings(json, defaults.own_keys);
  c.intermediate = json.at("intermediate_size").as_int(1, kMostWidth);
  read_heads(json, defaults, c);
  c.norm_eps = json.number_or("rms_norm_eps", defaults.norm_eps, 0, 1);
  c.init_range = json.number_or("initializer_range", 0.02, 0, kMostInitRange);
  c.attention_dropout = read_dropout(json, "attention_dropout", 0);
  c.tied = json.bool_or("tie_word_embeddings", defaults.tied);
  c.activation = read_activation(json, "hidden_act", "silu");
  if (!defaults.has_layer_rotary) c.rotary = read_rotary(json, c, defaults);
  c.layers.resize(static_cast<size_t>(c.facts.num_layers));
  return c;
}

ExpertsConfig read_experts(const Json& json, int64_t width, const ExpertsConfig& defaults) {
  ExpertsConfig c = defaults;
  c.intermediate = width;
  const char* key = experts_key(json);
  c.num_experts = json.int_or(key, defaults.num_experts, 1, kMostExperts);
  c.top_k = json.int_or("num_experts_per_tok", defaults.top_k, 1, kMostExperts);
  if (c.top_k > c.num_experts) {
    json.at(json.has("num_experts_per_tok") ? "num_experts_per_tok" : key)
        .fail(str("a token has ", c.top_k, " of ", c.num_experts,
                  " experts; num_experts_per_tok must be at most their number"));
  }
  const int64_t layers = json.at("num_hidden_layers").as_int(1, kMostLayers);
  if (c.num_experts * layers > kMostExpertsOfModel) {
    json.at("num_hidden_layers")
        .fail(str("with ", c.num_experts, " experts in each it is more than ", kMostExpertsOfModel,
                  " experts; check both"));
  }
  if (c.num_experts * width > kMostWidth) {
    json.at(json.has(key) ? key : "hidden_size")
        .fail(str(c.num_experts, " experts of width ", width, " are together wider than ",
                  kMostWidth, "; check both"));
  }
  return c;
}

void refuse_window(const Json& json) {
  refuse_setting(json, "use_sliding_window");
  if (json.bool_or("use_sliding_window", true)) refuse_setting(json, "sliding_window");
}

int64_t read_window(const Json& json, int64_t absent) {
  if (!has_key(json, "sliding_window")) return absent;
  return json.int_or("sliding_window", 0, 1, kMostPositions);
}

void read_layer_types(const Json& json, int64_t window, const std::vector<bool>& is_sliding,
                      DecoderConfig& c) {
  if (!json.has("layer_types")) {
    for (size_t i = 0; i < c.layers.size(); ++i) c.layers[i].window = is_sliding[i] ? window : 0;
    return;
  }
  const Json types = json.at("layer_types");
  if (types.size() != c.layers.size()) {
    types.fail(str("expected one type for each of num_hidden_layers=", c.layers.size()));
  }
  for (size_t i = 0; i < c.layers.size(); ++i) {
    const std::string& type = types.at(i).as_string();
    if (type != kFull && type != kSliding) {
      types.at(i).fail(str("the type is not supported; expected ", kFull, " or ", kSliding));
    }
    if (type == kSliding && window == 0) {
      types.at(i).fail("it needs a sliding_window that use_sliding_window does not turn off");
    }
    c.layers[i].window = type == kSliding ? window : 0;
  }
}

void read_periodic_windows(const Json& json, int64_t full_every, DecoderConfig& c) {
  const int64_t window = read_window(json, 4096);
  std::vector<bool> is_sliding;
  for (int64_t i = 1; i <= c.facts.num_layers; ++i) is_sliding.push_back(i % full_every != 0);
  if (window == 0 && full_every > 1 && !json.has("layer_types")) {
    json.at("sliding_window").fail("layers of this model_type have a sliding window; give one");
  }
  read_layer_types(json, window, is_sliding, c);
}

void set_window(const Json& json, int64_t window, DecoderConfig& c) {
  for (DecoderLayer& layer : c.layers) layer.window = window;
  if (!json.has("layer_types")) return;
  const Json types = json.at("layer_types");
  const char* expected = window == 0 ? kFull : kSliding;
  for (size_t i = 0; i < types.size(); ++i) {
    if (types.at(i).as_string() != expected) {
      types.at(i).fail(str("all layers of this model_type are the same; expected ", expected));
    }
  }
}

}  // namespace cleave::inline model
