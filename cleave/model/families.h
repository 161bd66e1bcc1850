#pragma once
#include <vector>

#include "cleave/model/decoder/config.h"

namespace cleave::inline model {

// The families of decoders: for each the reader of its config.json, which throws Error(kFormat)
// naming key, value, range and byte, and its presets.

/// LlamaForCausalLM: Llama 2, 3, 3.1, SmolLM2 and similar.
DecoderConfig llama_config(const Json& json);
/// Meta's params.json as a Hugging Face config.json; `vocab_size` is used if the file says -1.
Json llama_config_from_meta(const Json& params, int64_t vocab_size);
/// llama-tiny, llama-15m, llama-135m, smollm2-135m, llama-1.1b, and the sizes of
/// Llama 2, 3, 3.1 and 3.2.
std::vector<Preset> llama_presets();

/// Qwen2ForCausalLM (Qwen2, Qwen2.5): q, k and v have biases; layers from max_window_layers on may
/// have a sliding window.
DecoderConfig qwen2_config(const Json& json);
/// qwen2.5-0.5b.
std::vector<Preset> qwen2_presets();

/// Qwen3ForCausalLM: queries and keys have a norm of each head.
DecoderConfig qwen3_config(const Json& json);
/// qwen3-0.6b.
std::vector<Preset> qwen3_presets();

/// Qwen3MoeForCausalLM: Qwen3 with experts in the blocks that decoder_sparse_step and
/// mlp_only_layers name.
DecoderConfig qwen3_moe_config(const Json& json);
/// qwen3-moe-tiny, qwen3-30b-a3b and qwen3-235b-a22b.
std::vector<Preset> qwen3_moe_presets();

/// MistralForCausalLM: all layers have the window sliding_window.
DecoderConfig mistral_config(const Json& json);
/// mistral-7b.
std::vector<Preset> mistral_presets();

/// MixtralForCausalLM: Mistral with experts in every block.
DecoderConfig mixtral_config(const Json& json);
/// mixtral-tiny and mixtral-8x7b.
std::vector<Preset> mixtral_presets();

/// SmolLM3ForCausalLM: some layers have no rotary positions.
DecoderConfig smollm3_config(const Json& json);
/// smollm3-3b.
std::vector<Preset> smollm3_presets();

/// Olmo2ForCausalLM: norms follow attention and MLP; queries and keys have a norm over all heads.
DecoderConfig olmo2_config(const Json& json);
/// olmo2-1b.
std::vector<Preset> olmo2_presets();

/// Olmo3ForCausalLM: OLMo 2 in which every fourth layer is full, the others have a sliding window;
/// rotary scaling is for full layers.
DecoderConfig olmo3_config(const Json& json);
/// olmo3-7b.
std::vector<Preset> olmo3_presets();

/// Phi3ForCausalLM (Phi-3, Phi-3.5, Phi-4): q, k and v are one matrix, gate and up another.
DecoderConfig phi3_config(const Json& json);
/// phi3-mini.
std::vector<Preset> phi3_presets();

/// Gemma2ForCausalLM: attention scores and logits have soft caps; every second layer is full, the
/// others have a sliding window.
DecoderConfig gemma2_config(const Json& json);
/// gemma2-tiny, gemma2-2b.
std::vector<Preset> gemma2_presets();

/// Gemma3ForCausalLM (model_type gemma3_text): beside what Gemma 2 has, queries and keys have a
/// norm of each head, and sliding layers have their own rotary positions; attention scores have no
/// soft cap.
DecoderConfig gemma3_config(const Json& json);
/// gemma3-tiny, gemma3-270m, gemma3-1b.
std::vector<Preset> gemma3_presets();

}  // namespace cleave::inline model
