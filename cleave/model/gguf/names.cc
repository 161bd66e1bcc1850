#include "cleave/model/gguf/names.h"

#include <algorithm>
#include <array>
#include <span>

#include "cleave/base/error.h"

namespace cleave::inline model {
namespace {

// The first family of an architecture is the one that its files are read as.
constexpr GgufFamily kFamilies[] = {{"llama", "llama", "LlamaForCausalLM", true},
                                    {"mistral", "llama", "MistralForCausalLM", true},
                                    {"qwen2", "qwen2", "Qwen2ForCausalLM", false},
                                    {"qwen3", "qwen3", "Qwen3ForCausalLM", false},
                                    {"gpt2", "gpt2", "GPT2LMHeadModel", false}};

struct Pair {
  std::string_view parameter, tensor;
};

/// The names of a group of families. Source: the tensor names of the GGUF specification.
struct Names {
  std::string_view layers;  ///< before a layer's number; "blk." in GGUF
  std::span<const Pair> outer, in_layer;
  std::span<const std::string_view> transposed;  ///< tensors of a layer whose matrix is [in, out]
};

constexpr std::string_view kBlocks = "blk.";

constexpr Pair kLlamaOuter[] = {
    {"model.embed_tokens", "token_embd"}, {"model.norm", "output_norm"}, {"lm_head", "output"}};
constexpr Pair kLlamaLayer[] = {
    {"input_layernorm", "attn_norm"},    {"self_attn.q_proj", "attn_q"},
    {"self_attn.k_proj", "attn_k"},      {"self_attn.v_proj", "attn_v"},
    {"self_attn.o_proj", "attn_output"}, {"self_attn.q_norm", "attn_q_norm"},
    {"self_attn.k_norm", "attn_k_norm"}, {"post_attention_layernorm", "ffn_norm"},
    {"mlp.gate_proj", "ffn_gate"},       {"mlp.up_proj", "ffn_up"},
    {"mlp.down_proj", "ffn_down"}};

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
    return {"transformer.h.", kGpt2Outer, kGpt2Layer, kGpt2Transposed};
  }
  return {"model.layers.", kLlamaOuter, kLlamaLayer, {}};
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

/// The partner of `base` in a list of pairs; empty if there is none.
std::string_view partner(std::span<const Pair> pairs, std::string_view Pair::*from,
                         std::string_view Pair::*to, std::string_view base) {
  const auto at =
      std::find_if(pairs.begin(), pairs.end(), [&](const Pair& p) { return p.*from == base; });
  return at == pairs.end() ? std::string_view() : (*at).*to;
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
  for (const GgufFamily& family : kFamilies) {
    if (family.architecture == name) return family;
  }
  metadata.fail(kKey, str("'", name, "' is not supported; expected llama, qwen2, qwen3 or gpt2"));
}

std::optional<GgufName> gguf_name(const GgufFamily& family, std::string_view parameter) {
  const Names names = names_of(family);
  const auto parts = parts_of(parameter, names.layers);
  if (!parts) return std::nullopt;
  const bool in_layer = !parts->number.empty();
  const std::string_view tensor = partner(in_layer ? names.in_layer : names.outer, &Pair::parameter,
                                          &Pair::tensor, parts->base);
  if (tensor.empty()) return std::nullopt;
  const bool is_matrix = parts->suffix == ".weight";
  const bool is_transposed =
      is_matrix && in_layer &&
      std::find(names.transposed.begin(), names.transposed.end(), tensor) != names.transposed.end();
  return GgufName{
      .name = str(in_layer ? str(kBlocks, parts->number, ".") : "", tensor, parts->suffix),
      .is_interleaved = family.is_interleaved && (tensor == "attn_q" || tensor == "attn_k"),
      .is_transposed = is_transposed};
}

std::optional<std::string> parameter_of_gguf(const GgufFamily& family, std::string_view tensor) {
  const Names names = names_of(family);
  const auto parts = parts_of(tensor, kBlocks);
  if (!parts) return std::nullopt;
  const bool in_layer = !parts->number.empty();
  const std::string_view parameter = partner(in_layer ? names.in_layer : names.outer, &Pair::tensor,
                                             &Pair::parameter, parts->base);
  if (parameter.empty()) return std::nullopt;
  return str(in_layer ? str(names.layers, parts->number, ".") : "", parameter, parts->suffix);
}

}  // namespace cleave::inline model
