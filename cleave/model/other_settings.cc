#include "cleave/model/other_settings.h"

#include <algorithm>

#include "cleave/base/str.h"
#include "cleave/model/facts.h"

namespace cleave::inline model {
namespace {

/// A setting of families that Cleave does not have, or that only some of its families have.
struct OtherSetting {
  std::string_view key;
  /// The value without effect, beside null: "off" (is_off), "1", "off or 1", or a word; empty: none
  std::string_view harmless;
};

constexpr OtherSetting kOtherSettings[] = {
    // Factors: Granite, Cohere, MiniCPM, Falcon-H1.
    {"embedding_multiplier", "1"},
    {"residual_multiplier", "1"},
    {"attention_multiplier", ""},
    {"logits_scaling", "1"},
    {"logit_scale", "1"},
    {"scale_emb", "1"},
    {"scale_depth", ""},
    {"dim_model_base", ""},
    {"lm_head_multiplier", "1"},
    {"key_multiplier", "1"},
    // Soft caps and the divisor of scores: Gemma.
    {"attn_logit_softcapping", "off"},
    {"final_logit_softcapping", "off"},
    {"query_pre_attn_scalar", ""},
    // Attention and blocks: OLMo, Falcon, GPT-NeoX, Gemma, Qwen2-VL, Llama 4, Step, DeepSeek,
    // GPT-OSS.
    {"clip_qkv", "off"},
    {"alibi", "off"},
    {"parallel_attn", "off"},
    {"use_parallel_residual", "off"},
    {"rotary_pct", "1"},
    {"use_bidirectional_attention", "off"},
    {"use_mrope", "off"},
    {"use_qk_norm", "off"},
    {"qk_layernorm", "off"},
    {"attention_chunk_size", "off"},
    {"per_layer_config", "off"},
    {"attn_temperature_tuning", "off"},
    {"q_lora_rank", "off"},
    {"kv_lora_rank", "off"},
    {"swiglu_limit", "off"},
    // Experts: Mixtral, Qwen2-MoE, DeepSeek, GLM, Granite, MiniMax.
    {"num_experts", "off or 1"},
    {"num_local_experts", "off or 1"},
    {"n_routed_experts", "off or 1"},
    {"num_shared_experts", "off"},
    {"n_shared_experts", "off"},
    {"shared_expert_intermediate_size", "off"},
    {"shared_intermediate_size", "off"},
    {"routed_scaling_factor", "1"},
    {"scoring_func", "softmax"},
    {"topk_method", "greedy"},
    {"n_group", "off or 1"},
    {"topk_group", "off or 1"},
    {"first_k_dense_replace", "off"},
    {"moe_layer_freq", "1"},
    {"use_routing_bias", "off"},
};

/// Whether a value turns a setting off.
bool is_off(const Json& value) {
  using Type = Json::Type;
  return value.is(Type::kNull) || (value.is(Type::kBool) && !value.as_bool()) ||
         (value.is(Type::kNumber) && value.as_number() == 0) ||
         ((value.is(Type::kArray) || value.is(Type::kObject)) && value.size() == 0);
}

bool is_harmless(const Json& value, std::string_view harmless) {
  if (harmless.starts_with("off") && is_off(value)) return true;
  if (harmless.ends_with("1") && value.is(Json::Type::kNumber)) return value.as_number() == 1;
  return value.is(Json::Type::kString) && value.as_string() == harmless;
}

}  // namespace

void refuse_other_settings(const Json& json, const std::vector<std::string_view>& own_keys) {
  for (const auto& [key, harmless] : kOtherSettings) {
    const bool is_own = std::find(own_keys.begin(), own_keys.end(), key) != own_keys.end();
    if (is_own || !json.has(key)) continue;
    const Json value = json.at(key);
    if (is_harmless(value, harmless)) continue;
    value.fail(str("it is not supported for this model_type; expected ",
                   harmless.empty() ? "none" : harmless));
  }
  for (const char* key : {"quantization_config", "compression_config"}) {
    if (!json.has(key) || is_off(json.at(key))) continue;
    json.at(key).fail(
        "quantised weights of other programs are not supported; give the model in fp32, bf16 or "
        "fp16, or a GGUF file of the types F32, F16, BF16, Q8_0, Q4_0, Q4_K and Q6_K");
  }
}

void refuse_setting(const Json& json, std::string_view key) {
  if (!json.has(key)) return;
  const Json value = json.at(key);
  if (!is_off(value)) value.fail("it is not supported for this model_type; expected none");
}

void refuse_later_tokens(const Json& json) {
  if (!has_key(json, "is_causal")) return;
  const Json value = json.at("is_causal");
  if (!value.is(Json::Type::kBool) || !value.as_bool()) {
    value.fail("attention to later tokens is not supported for this model_type; expected true");
  }
}

}  // namespace cleave::inline model
