#include "cleave/model/gguf/model_config.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include <ATen/ATen.h>

#include "cleave/base/error.h"
#include "cleave/model/facts.h"
#include "cleave/model/gguf/names.h"
#include "cleave/model/llama/llama.h"
#include "cleave/model/mistral/mistral.h"
#include "cleave/model/qwen2/qwen2.h"
#include "cleave/model/qwen3/qwen3.h"
#include "cleave/nn/rotary.h"

namespace cleave::inline model {
namespace {

using Object = nlohmann::ordered_json;

/// llama3's scaling as Cleave writes it; other programs write only the factors.
constexpr std::string_view kOwnRopeScaling = "cleave.rope_scaling";
/// The released Llama 3.1 (factor 8) and 3.2 (32) models. Source: their config.json.
constexpr double kLowFactor = 1, kHighFactor = 4;
constexpr int64_t kOriginalPositions = 8192;

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
    if (metadata_.int_or(key("expert_count"), 0) != 0) {
      metadata_.fail(key("expert_count"), "models with experts are not supported");
    }
    if (family_.model_type == "gpt2") {
      read_gpt2();
    } else {
      read_llama();
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

  void read_llama() {
    const int64_t hidden = size("embedding_length", kMostWidth);
    const int64_t heads = size("attention.head_count", kMostHeads);
    const int64_t head_dim = metadata_.int_or(key("attention.key_length"), hidden / heads);
    for (const char* other : {"attention.value_length", "rope.dimension_count"}) {
      const int64_t dim = metadata_.int_or(key(other), head_dim);
      if (dim != head_dim) {
        metadata_.fail(key(other),
                       str("it is ", dim, "; only the head's size, ", head_dim, ", is supported"));
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
    read_rope_scaling();
  }

  /// As llama.cpp: a factor without a type is linear; older files have it as rope.scale_linear; a
  /// factor of 0 means none.
  void read_rope_scaling() {
    if (file_.find(kGgufRopeFactors) != nullptr) return read_rope_factors();
    const std::string type = metadata_.string_or(key("rope.scaling.type"), "linear");
    const double factor = metadata_.number_or(key("rope.scaling.factor"),
                                              metadata_.number_or(key("rope.scale_linear"), 1));
    if (type == "none" || (type == "linear" && (factor == 1 || factor == 0))) return;
    if (type != "linear") {
      metadata_.fail(key("rope.scaling.type"),
                     str("'", type, "' is not supported; expected none or linear"));
    }
    config_["rope_scaling"] = {{"rope_type", "linear"}, {"factor", tidy(factor)}};
  }

  /// The file has the factors of each frequency; finds the scaling that gives them.
  void read_rope_factors() {
    const TensorInfo& info = file_.at(kGgufRopeFactors);
    std::vector<float> stored(block_bytes(info, {}) / static_cast<size_t>(item_bytes(info.dtype)));
    CLEAVE_CHECK(info.dtype == DType::kF32 && !stored.empty(), Code::kFormat, file_.path(), ": ",
                 kGgufRopeFactors, " is empty or not F32");
    file_.read_block(kGgufRopeFactors, {}, std::as_writable_bytes(std::span(stored)));
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
        gguf_rope_factors(Json::parse(config_.dump(), str(file_.path(), " as config.json")));
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
  CLEAVE_CHECK(fits, Code::kUsage, "config.json has ", key, " ", config.at(key).dump(),
               ", which llama.cpp does not compute for this model; expected ", expected);
}

void require_activation(const Json& config, std::string_view key, std::string_view usual,
                        std::string_view other) {
  const std::string name = config.string_or(key, usual);
  require_value(config, key, name == usual || name == other, usual);
}

void add_gpt2(GgufMetadata& metadata, const Json& config) {
  require_activation(config, "activation_function", "gelu_new", "gelu_pytorch_tanh");
  require_value(config, "scale_attn_weights", config.bool_or("scale_attn_weights", true), "true");
  require_value(config, "scale_attn_by_inverse_layer_idx",
                !config.bool_or("scale_attn_by_inverse_layer_idx", false), "false");
  const int64_t hidden = config.at("n_embd").as_int();
  metadata.add_u32("gpt2.context_length", config.int_or("n_positions", 1024));
  metadata.add_u32("gpt2.embedding_length", hidden);
  metadata.add_u32("gpt2.block_count", config.at("n_layer").as_int());
  metadata.add_u32("gpt2.feed_forward_length", config.int_or("n_inner", 4 * hidden));
  metadata.add_u32("gpt2.attention.head_count", config.at("n_head").as_int());
  metadata.add_f32("gpt2.attention.layer_norm_epsilon",
                   config.number_or("layer_norm_epsilon", 1e-5));
}

/// The longest context: llama.cpp attends to all of it, so a sliding window bounds it.
int64_t context_length(const DecoderConfig& config) {
  int64_t positions = config.facts.max_positions;
  for (const DecoderLayer& layer : config.layers) {
    if (layer.window > 0) positions = std::min(positions, layer.window);
  }
  return positions;
}

DecoderConfig decoder_config(const Json& config) {
  const std::string& type = config.at("model_type").as_string();
  if (type == "mistral") return mistral_config(config);
  if (type == "qwen2") return qwen2_config(config);
  return type == "qwen3" ? qwen3_config(config) : llama_config(config);
}

void add_llama(GgufMetadata& metadata, const Json& config, const GgufFamily& family) {
  require_activation(config, "hidden_act", "silu", "swish");
  const DecoderConfig llama = decoder_config(config);
  const ModelFacts& facts = llama.facts;
  const auto key = [&](std::string_view name) { return str(family.architecture, ".", name); };
  require_value(config, "attention_bias",
                family.model_type != "qwen3" || !config.bool_or("attention_bias", false), "false");
  metadata.add_u32(key("context_length"), context_length(llama));
  metadata.add_u32(key("embedding_length"), facts.hidden);
  metadata.add_u32(key("block_count"), facts.num_layers);
  metadata.add_u32(key("feed_forward_length"), llama.intermediate);
  metadata.add_u32(key("attention.head_count"), facts.num_heads);
  metadata.add_u32(key("attention.head_count_kv"), facts.num_kv_heads);
  metadata.add_u32(key("attention.key_length"), llama.head_dim);
  metadata.add_u32(key("attention.value_length"), llama.head_dim);
  metadata.add_f32(key("attention.layer_norm_rms_epsilon"), llama.norm_eps);
  metadata.add_u32(key("rope.dimension_count"), llama.head_dim);
  metadata.add_f32(key("rope.freq_base"), llama.rotary.theta);
  using Scaling = RotaryOptions::Scaling;
  CLEAVE_CHECK(llama.rotary.scaling != Scaling::kYarn && llama.rotary.scaling != Scaling::kLongRope,
               Code::kUsage,
               "config.json: rope scaling of the types yarn and longrope is not written to GGUF; "
               "convert a model with none, linear or llama3");
  if (llama.rotary.scaling == Scaling::kLinear) {
    metadata.add_string(key("rope.scaling.type"), "linear");
    metadata.add_f32(key("rope.scaling.factor"), llama.rotary.factor);
  }
  if (llama.rotary.scaling == Scaling::kLlama3) {
    const Object scaling = {{"rope_type", "llama3"},
                            {"factor", llama.rotary.factor},
                            {"low_freq_factor", llama.rotary.low_freq_factor},
                            {"high_freq_factor", llama.rotary.high_freq_factor},
                            {"original_max_position_embeddings", llama.rotary.original_positions}};
    metadata.add_string(std::string(kOwnRopeScaling), scaling.dump());
  }
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
    add_llama(metadata, config, family);
  }
  metadata.add_u32(str(family.architecture, ".vocab_size"), config.at("vocab_size").as_int());
}

std::vector<float> gguf_rope_factors(const Json& config) {
  if (config.at("model_type").as_string() == "gpt2") return {};
  RotaryOptions options = decoder_config(config).rotary;
  if (options.scaling != RotaryOptions::Scaling::kLlama3) return {};
  const Tensor scaled = Rotary(options).frequencies();
  options.scaling = RotaryOptions::Scaling::kNone;
  const Tensor factors = Rotary(options).frequencies().div(scaled).to(at::kFloat).contiguous();
  const auto* first = factors.const_data_ptr<float>();
  return {first, first + factors.numel()};
}

}  // namespace cleave::inline model
