#include "cleave/model/gguf/model_config.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include <ATen/ATen.h>

#include "cleave/base/error.h"
#include "cleave/model/facts.h"
#include "cleave/model/families.h"
#include "cleave/model/gguf/names.h"
#include "cleave/model/gpt2/gpt2.h"
#include "cleave/nn/rotary.h"

namespace cleave::inline model {
namespace {

using Object = nlohmann::ordered_json;

/// llama3's scaling as Cleave writes it; other programs write only the factors.
constexpr std::string_view kOwnRopeScaling = "cleave.rope_scaling";
/// The released Llama 3.1 (factor 8) and 3.2 (32) models. Source: their config.json.
constexpr double kLowFactor = 1, kHighFactor = 4;
constexpr int64_t kOriginalPositions = 8192;

/// llama.cpp: every fourth layer of SmolLM3 has no rotary positions.
constexpr int64_t kSmolLm3NoRopeEvery = 4;

// What llama.cpp has as constants for Gemma: every second layer of Gemma 2 and every sixth of
// Gemma 3 attends to all keys; sliding layers of Gemma 3 have this rotary base; the models with
// these numbers of layers (27B) divide scores by the square root of width / heads.
constexpr int64_t kGemma2FullEvery = 2, kGemma3FullEvery = 6;
constexpr double kGemma3LocalTheta = 10000;
constexpr int64_t kGemma2LargeLayers = 46, kGemma3LargeLayers = 62;

/// The square of Gemma's score divisor, query_pre_attn_scalar.
int64_t gemma_scalar(bool is_gemma3, const ModelFacts& facts, int64_t head_dim) {
  const bool is_large = facts.num_layers == (is_gemma3 ? kGemma3LargeLayers : kGemma2LargeLayers);
  return is_large ? facts.hidden / facts.num_heads : head_dim;
}

/// llama.cpp's magnitude of yarn, which attn_factor multiplies.
double yarn_magnitude(double factor) {
  return factor <= 1 ? 1 : 0.1 * std::log(factor) + 1;
}

/// A float of a file as the shortest decimal that gives it: 1e-05, not 9.999999747378752e-06.
double tidy(double value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof(text), static_cast<float>(value)).ptr;
  double tidied = 0;
  std::from_chars(text, end, tidied);
  return tidied;
}

/// Builds the config.json of one file.
class ConfigReader {
 public:
  explicit ConfigReader(const Gguf& file)
      : file_(file), metadata_(file.metadata()), family_(gguf_family(metadata_)) {}

  Json read() {
    config_ = {{"architectures", {family_.class_name}}, {"model_type", family_.model_type}};
    const TensorInfo& embedding = file_.at("token_embd.weight");
    CLEAVE_CHECK(embedding.shape.size() == 2, Code::kFormat, file_.path(),
                 ": token_embd.weight has ", embedding.shape.size(), " dims; expected 2");
    config_["vocab_size"] = embedding.shape[0];
    if (family_.model_type == "gpt2") {
      read_gpt2();
    } else {
      read_decoder();
    }
    config_["tie_word_embeddings"] = file_.find("output.weight") == nullptr;
    read_special_ids();
    config_["torch_dtype"] = dtype_name(embedding.dtype);
    return Json::parse(config_.dump(), str(file_.path(), " as config.json"));
  }

 private:
  [[nodiscard]] std::string key(std::string_view name) const {
    return str(family_.architecture, ".", name);
  }
  [[nodiscard]] int64_t size(std::string_view name, int64_t most) const {
    const int64_t value = metadata_.int_at(key(name));
    if (value < 1 || value > most) {
      metadata_.fail(key(name), str("it is ", value, "; expected 1 to ", most));
    }
    return value;
  }
  [[nodiscard]] bool has_bias(std::string_view tensor) const {
    return file_.find(str("blk.0.", tensor, ".bias")) != nullptr;
  }

  static std::string dtype_name(DType dtype) {
    return dtype == DType::kBf16 ? "bfloat16" : dtype == DType::kF16 ? "float16" : "float32";
  }

  void read_gpt2() {
    config_["n_embd"] = size("embedding_length", kMostWidth);
    config_["n_layer"] = size("block_count", kMostLayers);
    config_["n_head"] = size("attention.head_count", kMostHeads);
    config_["n_positions"] = size("context_length", kMostPositions);
    config_["n_inner"] = size("feed_forward_length", kMostWidth);
    config_["activation_function"] = "gelu_new";
    config_["layer_norm_epsilon"] =
        tidy(metadata_.number_or(key("attention.layer_norm_epsilon"), 1e-5));
  }

  void read_decoder() {
    const int64_t hidden = size("embedding_length", kMostWidth);
    const int64_t heads = size("attention.head_count", kMostHeads);
    const int64_t head_dim = metadata_.int_or(key("attention.key_length"), hidden / heads);
    const bool is_phi3 = family_.model_type == "phi3";
    for (const char* other : {"attention.value_length", "rope.dimension_count"}) {
      const int64_t dim = metadata_.int_or(key(other), head_dim);
      if (dim != head_dim && !(is_phi3 && other == std::string_view("rope.dimension_count"))) {
        metadata_.fail(key(other), str("it is ", dim, "; expected the head size, ", head_dim));
      }
    }
    config_["hidden_size"] = hidden;
    config_["intermediate_size"] = size("feed_forward_length", kMostWidth);
    config_["num_hidden_layers"] = size("block_count", kMostLayers);
    config_["num_attention_heads"] = heads;
    config_["num_key_value_heads"] = metadata_.int_or(key("attention.head_count_kv"), heads);
    config_["head_dim"] = head_dim;
    config_["hidden_act"] = "silu";
    config_["max_position_embeddings"] = size("context_length", kMostPositions);
    config_["rms_norm_eps"] =
        tidy(metadata_.number_or(key("attention.layer_norm_rms_epsilon"), 1e-6));
    config_["rope_theta"] = tidy(metadata_.number_or(key("rope.freq_base"), 10000));
    const bool is_llama = family_.model_type == "llama";
    if (is_llama || family_.model_type == "qwen3") config_["attention_bias"] = has_bias("attn_q");
    if (is_llama) config_["mlp_bias"] = has_bias("ffn_gate");
    if (family_.model_type == "smollm3") config_["no_rope_layer_interval"] = kSmolLm3NoRopeEvery;
    read_rope_scaling();
    if (is_phi3) read_phi3(head_dim);
    if (family_.is_gemma) read_gemma(head_dim);
    if (family_.has_experts) read_experts();
  }

  void read_phi3(int64_t head_dim) {
    const int64_t rotated = metadata_.int_or(key("rope.dimension_count"), head_dim);
    config_["partial_rotary_factor"] = static_cast<double>(rotated) / static_cast<double>(head_dim);
    config_["original_max_position_embeddings"] = original_positions();
  }

  void read_gemma(int64_t head_dim) {
    const bool is_gemma3 = family_.architecture == "gemma3";
    config_["hidden_act"] = config_["hidden_activation"] = "gelu_pytorch_tanh";
    config_["sliding_window"] = size("attention.sliding_window", kMostPositions);
    ModelFacts facts;
    facts.hidden = config_.at("hidden_size").get<int64_t>();
    facts.num_layers = config_.at("num_hidden_layers").get<int64_t>();
    facts.num_heads = config_.at("num_attention_heads").get<int64_t>();
    config_["query_pre_attn_scalar"] = gemma_scalar(is_gemma3, facts, head_dim);
    if (!is_gemma3) {
      config_["attn_logit_softcapping"] =
          tidy(metadata_.number_or(key("attn_logit_softcapping"), 50));
      config_["final_logit_softcapping"] =
          tidy(metadata_.number_or(key("final_logit_softcapping"), 30));
      return;
    }
    const std::string pattern = key("attention.sliding_window_pattern");
    if (metadata_.int_or(pattern, kGemma3FullEvery) != kGemma3FullEvery) {
      metadata_.fail(pattern, str("only ", kGemma3FullEvery, " is supported"));
    }
    if (metadata_.number_or(key("final_logit_softcapping"), 0) != 0) {
      metadata_.fail(key("final_logit_softcapping"), "it is not supported for gemma3");
    }
    config_["sliding_window_pattern"] = kGemma3FullEvery;
    config_["rope_local_base_freq"] =
        tidy(metadata_.number_or(key("rope.freq_base_swa"), kGemma3LocalTheta));
  }

  void read_experts() {
    const bool is_mixtral = family_.model_type == "mixtral";
    config_[is_mixtral ? "num_local_experts" : "num_experts"] = size("expert_count", kMostExperts);
    config_["num_experts_per_tok"] = size("expert_used_count", kMostExperts);
    if (is_mixtral) return;
    config_["moe_intermediate_size"] = size("expert_feed_forward_length", kMostWidth);
    config_["norm_topk_prob"] = true;
  }

  [[nodiscard]] int64_t original_positions() const {
    return metadata_.int_or(key("rope.scaling.original_context_length"),
                            config_.at("max_position_embeddings").get<int64_t>());
  }

  /// As llama.cpp: a factor without a type is linear; older files have it as rope.scale_linear; a
  /// factor of 0 means none.
  void read_rope_scaling() {
    if (file_.find(kGgufRopeFactors) != nullptr) return read_rope_factors();
    const double magnitude = metadata_.number_or(key("rope.scaling.attn_factor"), 1);
    if (file_.find(kGgufShortFactors) != nullptr) return read_longrope(magnitude);
    const std::string type = metadata_.string_or(key("rope.scaling.type"), "linear");
    const double factor = metadata_.number_or(key("rope.scaling.factor"),
                                              metadata_.number_or(key("rope.scale_linear"), 1));
    if (type == "yarn") return read_yarn(factor, magnitude);
    if (magnitude != 1) {
      metadata_.fail(key("rope.scaling.attn_factor"), "it is supported for yarn and longrope only");
    }
    if (type == "none" || (type == "linear" && (factor == 1 || factor == 0))) return;
    if (type != "linear") {
      metadata_.fail(key("rope.scaling.type"),
                     str("'", type, "' is not supported; expected none, linear or yarn"));
    }
    config_["rope_scaling"] = {{"rope_type", "linear"}, {"factor", tidy(factor)}};
  }

  void read_yarn(double factor, double magnitude) {
    for (const char* other : {"yarn_log_multiplier", "yarn_ext_factor", "yarn_attn_factor"}) {
      const std::string name = key(str("rope.scaling.", other));
      if (metadata_.has(name)) metadata_.fail(name, "it is not supported");
    }
    Object scaling = {{"rope_type", "yarn"},
                      {"factor", tidy(factor)},
                      {"original_max_position_embeddings", original_positions()}};
    if (magnitude != 1) scaling["attention_factor"] = tidy(magnitude * yarn_magnitude(factor));
    for (const char* beta : {"beta_fast", "beta_slow"}) {
      const std::string name = key(str("rope.scaling.yarn_", beta));
      if (metadata_.has(name)) scaling[beta] = tidy(metadata_.number_or(name, 0));
    }
    config_["rope_scaling"] = scaling;
  }

  void read_longrope(double magnitude) {
    CLEAVE_CHECK(family_.model_type == "phi3", Code::kFormat, file_.path(), ": ", kGgufShortFactors,
                 " belongs to longrope, which Cleave supports only for phi3");
    config_["rope_scaling"] = {{"type", "longrope"}, {"attention_factor", tidy(magnitude)}};
    for (const auto& [name, tensor] : {std::pair("short_factor", kGgufShortFactors),
                                       std::pair("long_factor", kGgufLongFactors)}) {
      Object factors = Object::array();
      for (const float factor : stored_factors(tensor)) {
        factors.push_back(tidy(static_cast<double>(factor)));
      }
      config_["rope_scaling"][name] = factors;
    }
  }

  [[nodiscard]] std::vector<float> stored_factors(std::string_view tensor) const {
    const TensorInfo& info = file_.at(tensor);
    CLEAVE_CHECK(info.dtype == DType::kF32 && block_bytes(info, {}) > 0, Code::kFormat,
                 file_.path(), ": ", tensor, " is empty or not F32");
    std::vector<float> stored(block_bytes(info, {}) / sizeof(float));
    file_.read_block(tensor, {}, std::as_writable_bytes(std::span(stored)));
    return stored;
  }

  /// Finds the rotary scaling that gives the factors of the frequencies in the file.
  void read_rope_factors() {
    const std::vector<float> stored = stored_factors(kGgufRopeFactors);
    if (metadata_.has(kOwnRopeScaling)) {
      const std::string& text = metadata_.string_at(kOwnRopeScaling);
      config_["rope_scaling"] = Object::parse(
          Json::parse(text, str(file_.path(), ": metadata '", kOwnRopeScaling, "'")).dump());
    } else {
      config_["rope_scaling"] = {{"rope_type", "llama3"},
                                 {"factor", tidy(static_cast<double>(stored.back()))},
                                 {"low_freq_factor", kLowFactor},
                                 {"high_freq_factor", kHighFactor},
                                 {"original_max_position_embeddings", kOriginalPositions}};
    }
    const auto expected =
        gguf_rope_factors(Json::parse(config_.dump(), str(file_.path(), " as config.json")))
            .at(0)
            .values;
    bool is_equal = expected.size() == stored.size();
    for (size_t i = 0; is_equal && i < stored.size(); ++i) {
      is_equal = std::abs(stored[i] - expected[i]) <= 1e-5F * std::abs(expected[i]);
    }
    CLEAVE_CHECK(is_equal, Code::kFormat, file_.path(), ": ", kGgufRopeFactors,
                 " has the factors of an unknown rotary scaling; only llama3's are supported");
  }

  void read_special_ids() {
    const int64_t vocab = config_.at("vocab_size").get<int64_t>();
    const auto id_of = [&](std::string_view name) {
      const std::string id_key = str("tokenizer.ggml.", name, "_token_id");
      const int64_t id = metadata_.int_or(id_key, -1);
      if (id >= vocab) metadata_.fail(id_key, str(id, " is outside the vocabulary of ", vocab));
      return id;
    };
    Object ends = Object::array();
    for (const char* name : {"eos", "eot", "eom"}) {
      const int64_t id = id_of(name);
      if (id >= 0 && std::find(ends.begin(), ends.end(), id) == ends.end()) ends.push_back(id);
    }
    config_["bos_token_id"] = id_of("bos") < 0 ? Object() : Object(id_of("bos"));
    config_["eos_token_id"] = ends.empty() ? Object() : ends.size() == 1 ? ends[0] : ends;
    config_["pad_token_id"] = id_of("padding") < 0 ? Object() : Object(id_of("padding"));
  }

  const Gguf& file_;
  const GgufMetadata& metadata_;
  const GgufFamily& family_;
  Object config_;
};

/// Throws Error(kUsage) unless the value, or its default, is what llama.cpp computes.
void require_value(const Json& config, std::string_view key, bool fits, std::string_view expected) {
  CLEAVE_CHECK(fits, Code::kUsage, "config.json has ", key, " ",
               config.has(key) ? config.at(key).dump() : "at its default",
               ", which llama.cpp does not compute for this model; expected ", expected);
}

void add_gpt2(GgufMetadata& metadata, const Json& config) {
  const Gpt2Config sizes = Gpt2Config::from_json(config);
  require_value(config, "activation_function", sizes.activation == Activation::kGeluTanh,
                "gelu_new");
  require_value(config, "scale_attn_weights", sizes.scale_attn_weights, "true");
  require_value(config, "scale_attn_by_inverse_layer_idx", !sizes.scale_attn_by_inverse_layer_idx,
                "false");
  const auto add = [&metadata](const char* key, int64_t value) { metadata.add_u32(key, value); };
  add("gpt2.context_length", sizes.facts.max_positions);
  add("gpt2.embedding_length", sizes.facts.hidden);
  add("gpt2.block_count", sizes.facts.num_layers);
  add("gpt2.feed_forward_length", sizes.intermediate);
  add("gpt2.attention.head_count", sizes.facts.num_heads);
  metadata.add_f32("gpt2.attention.layer_norm_epsilon",
                   config.number_or("layer_norm_epsilon", 1e-5));
}

/// The longest context. llama.cpp attends to all of it, so it may not exceed a sliding window.
int64_t context_length(const DecoderConfig& config) {
  int64_t positions = config.facts.max_positions;
  for (const DecoderLayer& layer : config.layers) {
    if (layer.window > 0) positions = std::min(positions, layer.window);
  }
  return positions;
}

DecoderConfig decoder_config(const Json& config) {
  using Reader = DecoderConfig (*)(const Json&);
  constexpr std::pair<std::string_view, Reader> kReaders[] = {
      {"llama", &llama_config},       {"mistral", &mistral_config},
      {"mixtral", &mixtral_config},   {"qwen2", &qwen2_config},
      {"qwen3", &qwen3_config},       {"qwen3_moe", &qwen3_moe_config},
      {"smollm3", &smollm3_config},   {"olmo2", &olmo2_config},
      {"phi3", &phi3_config},         {"gemma2", &gemma2_config},
      {"gemma3_text", &gemma3_config}};
  const std::string& type = config.at("model_type").as_string();
  for (const auto& [name, read] : kReaders) {
    if (name == type) return read(config);
  }
  CLEAVE_BUG("no decoder of type ", type);
}

void require_rotary(const DecoderConfig& c, const GgufFamily& family) {
  using Scaling = RotaryOptions::Scaling;
  const Scaling scaling = c.rotary.scaling;
  CLEAVE_CHECK(scaling != Scaling::kLongRope || family.model_type == "phi3", Code::kUsage,
               "config.json: rope scaling of the type longrope is written to GGUF for phi3 only");
  CLEAVE_CHECK(
      scaling != Scaling::kYarn || (c.rotary.truncates && !family.is_gemma), Code::kUsage,
      "config.json: rope scaling of the type yarn with \"truncate\" false, or of Gemma, is "
      "not what llama.cpp computes");
  const bool is_smollm3 = family.model_type == "smollm3";
  int64_t number = 0;
  for (const DecoderLayer& layer : c.layers) {
    const bool has_rotary = ++number % kSmolLm3NoRopeEvery != 0 || !is_smollm3;
    CLEAVE_CHECK(layer.has_rotary == has_rotary, Code::kUsage, "config.json: layer ", number - 1,
                 has_rotary ? " has no" : " has", " rotary positions; llama.cpp computes all but ",
                 "every ", kSmolLm3NoRopeEvery, "th layer of this model with them");
  }
}

/// Throws Error(kUsage) for what llama.cpp computes otherwise.
void require_decoder(const Json& config, const DecoderConfig& c, const GgufFamily& family) {
  const bool may_have_bias = family.model_type == "llama" || family.model_type == "mistral" ||
                             family.model_type == "qwen2";
  require_value(config, "attention_bias", may_have_bias || !(c.qkv_bias || c.out_bias), "false");
  if (family.is_gemma) {
    require_value(config, "hidden_activation", c.activation == Activation::kGeluTanh,
                  "gelu_pytorch_tanh");
  } else {
    require_value(config, "hidden_act", c.activation == Activation::kSilu, "silu");
  }
  require_rotary(c, family);
  if (family.model_type == "smollm3") {
    require_value(config, "mlp_bias", !c.mlp_bias, "false");
  }
  if (!family.has_experts) return;
  require_value(config, "norm_topk_prob", c.experts.normalizes, "true");
}

void require_gemma(const Json& config, const DecoderConfig& c, bool is_gemma3) {
  const int64_t full_every = is_gemma3 ? kGemma3FullEvery : kGemma2FullEvery;
  int64_t number = 0;
  for (const DecoderLayer& layer : c.layers) {
    const bool is_sliding = ++number % full_every != 0;
    const RotaryOptions rotary = layer.rotary.value_or(c.rotary);
    CLEAVE_CHECK((layer.window > 0) == is_sliding, Code::kUsage, "config.json: layer ", number - 1,
                 is_sliding ? " has no" : " has a", " sliding window; llama.cpp computes all but ",
                 "every ", full_every, "th layer of this model with one");
    if (!is_gemma3 || !is_sliding) continue;
    require_value(
        config, "rope_local_base_freq",
        rotary.theta == kGemma3LocalTheta && rotary.scaling == RotaryOptions::Scaling::kNone,
        "10000, without scaling");
  }
  const auto scalar = static_cast<double>(gemma_scalar(is_gemma3, c.facts, c.head_dim));
  require_value(config, "query_pre_attn_scalar", c.score_divisor == std::sqrt(scalar), str(scalar));
  if (is_gemma3) {
    require_value(config, "final_logit_softcapping", c.logit_cap == 0, "null");
    return;
  }
  require_value(config, "tie_word_embeddings", c.tied, "true");
  require_value(config, "attn_logit_softcapping", c.score_cap > 0, "a number above 0");
  require_value(config, "final_logit_softcapping", c.logit_cap > 0, "a number above 0");
}

void add_gemma(GgufMetadata& metadata, const Json& config, const DecoderConfig& c,
               const GgufFamily& family) {
  const bool is_gemma3 = family.architecture == "gemma3";
  require_gemma(config, c, is_gemma3);
  const auto key = [&](std::string_view name) { return str(family.architecture, ".", name); };
  metadata.add_u32(key("attention.sliding_window"), c.layers.front().window);
  if (is_gemma3) return;
  metadata.add_f32(key("attn_logit_softcapping"), c.score_cap);
  metadata.add_f32(key("final_logit_softcapping"), c.logit_cap);
}

/// `prefix` is the beginning of the keys.
void add_rope_scaling(GgufMetadata& metadata, const RotaryOptions& rotary,
                      const std::string& prefix) {
  using Scaling = RotaryOptions::Scaling;
  switch (rotary.scaling) {
    case Scaling::kNone:
      return;
    case Scaling::kLinear:
      metadata.add_string(prefix + "type", "linear");
      return metadata.add_f32(prefix + "factor", rotary.factor);
    case Scaling::kLlama3: {
      const Object scaling = {{"rope_type", "llama3"},
                              {"factor", rotary.factor},
                              {"low_freq_factor", rotary.low_freq_factor},
                              {"high_freq_factor", rotary.high_freq_factor},
                              {"original_max_position_embeddings", rotary.original_positions}};
      return metadata.add_string(std::string(kOwnRopeScaling), scaling.dump());
    }
    case Scaling::kYarn: {
      metadata.add_string(prefix + "type", "yarn");
      metadata.add_f32(prefix + "factor", rotary.factor);
      metadata.add_u32(prefix + "original_context_length", rotary.original_positions);
      const double usual = yarn_magnitude(rotary.factor);
      const bool is_usual = std::abs(rotary.magnitude - usual) < 1e-6 * usual;
      if (!is_usual) metadata.add_f32(prefix + "attn_factor", rotary.magnitude / usual);
      const RotaryOptions defaults;
      if (rotary.beta_fast != defaults.beta_fast) {
        metadata.add_f32(prefix + "yarn_beta_fast", rotary.beta_fast);
      }
      if (rotary.beta_slow != defaults.beta_slow) {
        metadata.add_f32(prefix + "yarn_beta_slow", rotary.beta_slow);
      }
      return;
    }
    case Scaling::kLongRope:
      metadata.add_string(prefix + "type", "longrope");
      metadata.add_u32(prefix + "original_context_length", rotary.original_positions);
      return metadata.add_f32(prefix + "attn_factor", rotary.magnitude);
  }
}

void add_decoder(GgufMetadata& metadata, const Json& config, const GgufFamily& family) {
  const DecoderConfig c = decoder_config(config);
  require_decoder(config, c, family);
  const ModelFacts& facts = c.facts;
  const auto key = [&](std::string_view name) { return str(family.architecture, ".", name); };
  metadata.add_u32(key("context_length"),
                   family.is_gemma ? facts.max_positions : context_length(c));
  metadata.add_u32(key("embedding_length"), facts.hidden);
  metadata.add_u32(key("block_count"), facts.num_layers);
  metadata.add_u32(key("feed_forward_length"), c.intermediate);
  metadata.add_u32(key("attention.head_count"), facts.num_heads);
  metadata.add_u32(key("attention.head_count_kv"), facts.num_kv_heads);
  metadata.add_u32(key("attention.key_length"), c.head_dim);
  metadata.add_u32(key("attention.value_length"), c.head_dim);
  metadata.add_f32(key("attention.layer_norm_rms_epsilon"), c.norm_eps);
  metadata.add_u32(key("rope.dimension_count"), c.rotary.head_dim);
  metadata.add_f32(key("rope.freq_base"), c.rotary.theta);
  if (family.is_gemma) add_gemma(metadata, config, c, family);
  if (family.has_experts) {
    metadata.add_u32(key("expert_count"), c.experts.num_experts);
    metadata.add_u32(key("expert_used_count"), c.experts.top_k);
    metadata.add_u32(key("expert_feed_forward_length"), c.experts.intermediate);
  }
  add_rope_scaling(metadata, c.rotary, str(family.architecture, ".rope.scaling."));
}

}  // namespace

Json config_from_gguf(const Gguf& file) {
  return ConfigReader(file).read();
}

void add_gguf_config(GgufMetadata& metadata, const Json& config, const std::string& name) {
  const GgufFamily& family = gguf_family(config);
  metadata.add_string("general.architecture", std::string(family.architecture));
  metadata.add_string("general.type", "model");
  metadata.add_string("general.name", name);
  if (family.model_type == "gpt2") {
    add_gpt2(metadata, config);
  } else {
    add_decoder(metadata, config, family);
  }
  metadata.add_u32(str(family.architecture, ".vocab_size"), config.at("vocab_size").as_int());
}

std::vector<GgufFactors> gguf_rope_factors(const Json& config) {
  if (config.at("model_type").as_string() == "gpt2") return {};
  RotaryOptions options = decoder_config(config).rotary;
  if (options.scaling == RotaryOptions::Scaling::kLongRope) {
    const auto tensor = [](std::string_view name, const std::vector<double>& factors) {
      return GgufFactors{.name = std::string(name), .values = {factors.begin(), factors.end()}};
    };
    return {tensor(kGgufLongFactors, options.long_factors),
            tensor(kGgufShortFactors, options.short_factors)};
  }
  if (options.scaling != RotaryOptions::Scaling::kLlama3) return {};
  const Tensor scaled = Rotary(options).frequencies();
  options.scaling = RotaryOptions::Scaling::kNone;
  const Tensor factors = Rotary(options).frequencies().div(scaled).to(at::kFloat).contiguous();
  const auto* first = factors.const_data_ptr<float>();
  return {{.name = std::string(kGgufRopeFactors), .values = {first, first + factors.numel()}}};
}

}  // namespace cleave::inline model
