#include "cleave/model/gguf/names.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <span>

#include "cleave/base/error.h"

namespace cleave::inline model {
namespace {

// The first family of an architecture, with or without experts, is the one that its files are read
// as.
constexpr GgufFamily kFamilies[] = {
    {"llama", "llama", "LlamaForCausalLM", /*is_interleaved=*/true},
    {"mistral", "llama", "MistralForCausalLM", /*is_interleaved=*/true},
    {"mixtral", "llama", "MixtralForCausalLM", /*is_interleaved=*/true, /*has_experts=*/true},
    {"qwen2", "qwen2", "Qwen2ForCausalLM"},
    {"qwen3", "qwen3", "Qwen3ForCausalLM"},
    {"qwen3_moe", "qwen3moe", "Qwen3MoeForCausalLM", /*is_interleaved=*/false,
     /*has_experts=*/true},
    {"smollm3", "smollm3", "SmolLM3ForCausalLM", /*is_interleaved=*/true},
    {"olmo2", "olmo2", "Olmo2ForCausalLM"},
    {"phi3", "phi3", "Phi3ForCausalLM"},
    {.model_type = "gemma2",
     .architecture = "gemma2",
     .class_name = "Gemma2ForCausalLM",
     .is_gemma = true},
    {.model_type = "gemma3_text",
     .architecture = "gemma3",
     .class_name = "Gemma3ForCausalLM",
     .is_gemma = true},
    {"gpt2", "gpt2", "GPT2LMHeadModel"}};

struct Pair {
  std::string_view parameter, tensor;
};
using Pairs = std::span<const Pair>;

/// The names of a group of families. Source: the tensor names of the GGUF specification.
struct Names {
  std::string_view layers;  ///< before a layer's number; "blk." in GGUF
  Pairs outer;
  std::array<Pairs, 2> in_layer;
  std::span<const std::string_view> transposed{};  ///< tensors whose matrix is [in, out]
  std::string_view experts{};                      ///< before an expert's number
  Pairs in_expert{};
};

constexpr std::string_view kBlocks = "blk.";

constexpr Pair kOuter[] = {
    {"model.embed_tokens", "token_embd"}, {"model.norm", "output_norm"}, {"lm_head", "output"}};
constexpr Pair kLayer[] = {{"self_attn.q_proj", "attn_q"},      {"self_attn.k_proj", "attn_k"},
                           {"self_attn.v_proj", "attn_v"},      {"self_attn.o_proj", "attn_output"},
                           {"self_attn.q_norm", "attn_q_norm"}, {"self_attn.k_norm", "attn_k_norm"},
                           {"mlp.gate_proj", "ffn_gate"},       {"mlp.up_proj", "ffn_up"},
                           {"mlp.down_proj", "ffn_down"}};
constexpr Pair kNorms[] = {{"input_layernorm", "attn_norm"},
                           {"post_attention_layernorm", "ffn_norm"}};
constexpr Pair kOlmo2Norms[] = {{"post_attention_layernorm", "post_attention_norm"},
                                {"post_feedforward_layernorm", "post_ffw_norm"}};
constexpr Pair kGemmaNorms[] = {{"input_layernorm", "attn_norm"},
                                {"post_attention_layernorm", "post_attention_norm"},
                                {"pre_feedforward_layernorm", "ffn_norm"},
                                {"post_feedforward_layernorm", "post_ffw_norm"}};
constexpr Pair kPhi3Layer[] = {{"self_attn.qkv_proj", "attn_qkv"},
                               {"self_attn.o_proj", "attn_output"},
                               {"mlp.gate_up_proj", "ffn_up"},
                               {"mlp.down_proj", "ffn_down"}};
constexpr Pair kMixtralLayer[] = {{"self_attn.q_proj", "attn_q"},
                                  {"self_attn.k_proj", "attn_k"},
                                  {"self_attn.v_proj", "attn_v"},
                                  {"self_attn.o_proj", "attn_output"},
                                  {"block_sparse_moe.gate", "ffn_gate_inp"}};
constexpr Pair kMixtralExpert[] = {
    {"w1", "ffn_gate_exps"}, {"w3", "ffn_up_exps"}, {"w2", "ffn_down_exps"}};
constexpr Pair kQwen3MoeLayer[] = {
    {"self_attn.q_proj", "attn_q"},      {"self_attn.k_proj", "attn_k"},
    {"self_attn.v_proj", "attn_v"},      {"self_attn.o_proj", "attn_output"},
    {"self_attn.q_norm", "attn_q_norm"}, {"self_attn.k_norm", "attn_k_norm"},
    {"mlp.gate", "ffn_gate_inp"}};
constexpr Pair kQwen3MoeExpert[] = {
    {"gate_proj", "ffn_gate_exps"}, {"up_proj", "ffn_up_exps"}, {"down_proj", "ffn_down_exps"}};

constexpr Pair kGpt2Outer[] = {{"transformer.wte", "token_embd"},
                               {"transformer.wpe", "position_embd"},
                               {"transformer.ln_f", "output_norm"},
                               {"lm_head", "output"}};
constexpr Pair kGpt2Layer[] = {{"ln_1", "attn_norm"},          {"attn.c_attn", "attn_qkv"},
                               {"attn.c_proj", "attn_output"}, {"ln_2", "ffn_norm"},
                               {"mlp.c_fc", "ffn_up"},         {"mlp.c_proj", "ffn_down"}};
constexpr std::string_view kGpt2Transposed[] = {"attn_qkv", "attn_output", "ffn_up", "ffn_down"};

Names names_of(const GgufFamily& family) {
  if (family.architecture == "gpt2") {
    return {"transformer.h.", kGpt2Outer, {kGpt2Layer}, kGpt2Transposed};
  }
  Names names{"model.layers.", kOuter, {kLayer, kNorms}};
  if (family.architecture == "olmo2") names.in_layer[1] = kOlmo2Norms;
  if (family.architecture == "phi3") names.in_layer[0] = kPhi3Layer;
  if (family.is_gemma) names.in_layer[1] = kGemmaNorms;
  if (!family.has_experts) return names;
  const bool is_mixtral = family.model_type == "mixtral";
  names.in_layer[0] = is_mixtral ? Pairs(kMixtralLayer) : Pairs(kQwen3MoeLayer);
  names.experts = is_mixtral ? "block_sparse_moe.experts." : "mlp.experts.";
  names.in_expert = is_mixtral ? Pairs(kMixtralExpert) : Pairs(kQwen3MoeExpert);
  return names;
}

/// "PREFIXNUMBER.BASE.SUFFIX" or "BASE.SUFFIX".
struct Parts {
  std::string_view number, base, suffix;
};

std::optional<Parts> parts_of(std::string_view name, std::string_view layers) {
  Parts parts;
  if (name.starts_with(layers)) {
    name.remove_prefix(layers.size());
    const size_t end = name.find('.');
    if (end == std::string_view::npos) return std::nullopt;
    parts.number = name.substr(0, end);
    name.remove_prefix(end + 1);
  }
  const size_t dot = name.rfind('.');
  if (dot == std::string_view::npos) return std::nullopt;
  parts.base = name.substr(0, dot);
  parts.suffix = name.substr(dot);
  return parts;
}

/// The partner of `base` in lists of pairs; empty if there is none.
std::string_view partner(std::span<const Pairs> lists, std::string_view Pair::*from,
                         std::string_view Pair::*to, std::string_view base) {
  for (const Pairs& pairs : lists) {
    const auto at =
        std::find_if(pairs.begin(), pairs.end(), [&](const Pair& p) { return p.*from == base; });
    if (at != pairs.end()) return (*at).*to;
  }
  return {};
}

std::string_view partner(const Names& names, bool in_layer, std::string_view Pair::*from,
                         std::string_view Pair::*to, std::string_view base) {
  return in_layer ? partner(names.in_layer, from, to, base)
                  : partner(std::span(&names.outer, 1), from, to, base);
}

/// The tensor of all experts, and the expert, for "EXPERTSNUMBER.NAME"; nullopt for other names.
std::optional<GgufName> stacked_name(const Names& names, std::string_view base) {
  if (names.experts.empty() || !base.starts_with(names.experts)) return std::nullopt;
  base.remove_prefix(names.experts.size());
  const size_t dot = base.find('.');
  int64_t expert = -1;
  const char* end = base.data() + std::min(dot, base.size());
  if (std::from_chars(base.data(), end, expert).ptr != end || expert < 0) return std::nullopt;
  if (dot == std::string_view::npos) return std::nullopt;
  const std::string_view tensor = partner(std::span(&names.in_expert, 1), &Pair::parameter,
                                          &Pair::tensor, base.substr(dot + 1));
  if (tensor.empty()) return std::nullopt;
  return GgufName{.name = std::string(tensor), .expert = expert};
}

}  // namespace

const GgufFamily& gguf_family(const Json& config) {
  const std::string type = config.at("model_type").as_string();
  std::string known;
  for (const GgufFamily& family : kFamilies) {
    if (family.model_type == type) return family;
    known += str(known.empty() ? "" : ", ", family.model_type);
  }
  throw Error(Code::kUsage,
              str("a model of type ", type, " cannot be written as GGUF; expected one of ", known));
}

const GgufFamily& gguf_family(const GgufMetadata& metadata) {
  constexpr std::string_view kKey = "general.architecture";
  const std::string& name = metadata.string_at(kKey);
  const std::string experts = str(name, ".expert_count");
  const bool has_experts = metadata.int_or(experts, 0) != 0;
  std::string known;
  bool is_known = false;
  for (const GgufFamily& family : kFamilies) {
    if (family.architecture == name && family.has_experts == has_experts) return family;
    is_known = is_known || family.architecture == name;
    if (known.find(family.architecture) != std::string::npos) continue;
    known += str(known.empty() ? "" : ", ", family.architecture);
  }
  if (is_known && has_experts) {
    metadata.fail(experts, "models of this architecture with experts are not supported");
  }
  metadata.fail(kKey, is_known ? str("'", name, "' has experts, and ", experts, " is missing or 0")
                               : str("'", name, "' is not supported; expected one of ", known));
}

std::optional<GgufName> gguf_name(const GgufFamily& family, std::string_view parameter) {
  const Names names = names_of(family);
  const auto parts = parts_of(parameter, names.layers);
  if (!parts) return std::nullopt;
  const bool in_layer = !parts->number.empty();
  const std::string prefix = in_layer ? str(kBlocks, parts->number, ".") : "";
  if (in_layer) {
    if (std::optional<GgufName> stacked = stacked_name(names, parts->base)) {
      stacked->name = str(prefix, stacked->name, parts->suffix);
      return stacked;
    }
  }
  const std::string_view tensor =
      partner(names, in_layer, &Pair::parameter, &Pair::tensor, parts->base);
  if (tensor.empty()) return std::nullopt;
  const bool is_matrix = parts->suffix == ".weight";
  const bool is_transposed =
      is_matrix && in_layer &&
      std::find(names.transposed.begin(), names.transposed.end(), tensor) != names.transposed.end();
  return GgufName{
      .name = str(prefix, tensor, parts->suffix),
      .is_interleaved = family.is_interleaved && (tensor == "attn_q" || tensor == "attn_k"),
      .is_transposed = is_transposed,
      .added = family.is_gemma && tensor.ends_with("norm") ? 1.0 : 0.0};
}

std::optional<std::string> parameter_of_gguf(const GgufFamily& family, std::string_view tensor,
                                             int64_t expert) {
  const Names names = names_of(family);
  const auto parts = parts_of(tensor, kBlocks);
  if (!parts) return std::nullopt;
  const bool in_layer = !parts->number.empty();
  const std::string prefix = in_layer ? str(names.layers, parts->number, ".") : "";
  const std::string_view in_expert =
      partner(std::span(&names.in_expert, 1), &Pair::tensor, &Pair::parameter, parts->base);
  if (in_layer && !in_expert.empty()) {
    return str(prefix, names.experts, expert, ".", in_expert, parts->suffix);
  }
  const std::string_view parameter =
      partner(names, in_layer, &Pair::tensor, &Pair::parameter, parts->base);
  if (parameter.empty()) return std::nullopt;
  return str(prefix, parameter, parts->suffix);
}

}  // namespace cleave::inline model
