#include <nlohmann/json.hpp>

#include "cleave/model/families.h"

namespace cleave::inline model {

DecoderConfig llama_config(const Json& json) {
  DecoderConfig c = read_decoder(json, {.eos = 2});
  c.qkv_bias = c.out_bias = json.bool_or("attention_bias", false);
  c.mlp_bias = json.bool_or("mlp_bias", false);
  set_window(json, 0, c);
  refuse_window(json);
  return c;
}

Json llama_config_from_meta(const Json& params, int64_t vocab_size) {
  const int64_t dim = params.at("dim").as_int(1, kMostWidth);
  const int64_t heads = params.at("n_heads").as_int(1, kMostHeads);
  if (dim % heads != 0) params.at("dim").fail(str("it must be a multiple of n_heads=", heads));
  const int64_t multiple = params.int_or("multiple_of", 256, 1, kMostWidth);
  // Meta's rule if the width is not given: two thirds of 4 dim, scaled, rounded up.
  const int64_t two_thirds = 8 * dim / 3;
  auto width = static_cast<int64_t>(static_cast<double>(two_thirds) *
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
      {"rope_theta", params.number_or("rope_theta", 10000, 1, 1e30)},
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

std::vector<Preset> llama_presets() {
  struct Sizes {
    const char* name = nullptr;
    int64_t hidden = 0, intermediate = 0, layers = 0, heads = 0, kv_heads = 0, positions = 0;
    double theta = 0;
    bool tied = false;
    int64_t vocab = 0;
    double rope_factor = 1;  // of Llama 3.1 and 3.2: how much longer sequences are than 8192
  };
  std::vector<Preset> out;
  for (const Sizes& p :
       {Sizes{"llama-tiny", 256, 688, 6, 8, 4, 2048, 10000, true, 32000},
        {"llama-15m", 288, 768, 6, 6, 6, 2048, 10000, true, 32000},
        {"llama-135m", 576, 1536, 30, 9, 3, 2048, 10000, true, 32000},
        {"smollm2-135m", 576, 1536, 30, 9, 3, 8192, 100000, true, 49152},
        {"llama-1.1b", 2048, 5632, 22, 32, 4, 2048, 10000, false, 32000},
        {"llama2-7b", 4096, 11008, 32, 32, 32, 4096, 10000, false, 32000},
        {"llama2-13b", 5120, 13824, 40, 40, 40, 4096, 10000, false, 32000},
        {"llama2-70b", 8192, 28672, 80, 64, 8, 4096, 10000, false, 32000},
        {"llama3-8b", 4096, 14336, 32, 32, 8, 8192, 500000, false, 128256},
        {"llama3-70b", 8192, 28672, 80, 64, 8, 8192, 500000, false, 128256},
        {"llama3.1-8b", 4096, 14336, 32, 32, 8, 131072, 500000, false, 128256, 8},
        {"llama3.1-70b", 8192, 28672, 80, 64, 8, 131072, 500000, false, 128256, 8},
        {"llama3.1-405b", 16384, 53248, 126, 128, 8, 131072, 500000, false, 128256, 8},
        {"llama3.2-1b", 2048, 8192, 16, 32, 8, 131072, 500000, true, 128256, 32},
        {"llama3.2-3b", 3072, 8192, 28, 24, 8, 131072, 500000, true, 128256, 32}}) {
    const nlohmann::ordered_json scaling = {{"rope_type", "llama3"},
                                            {"factor", p.rope_factor},
                                            {"low_freq_factor", 1.0},
                                            {"high_freq_factor", 4.0},
                                            {"original_max_position_embeddings", 8192}};
    const nlohmann::ordered_json config = {{"architectures", {"LlamaForCausalLM"}},
                                           {"model_type", "llama"},
                                           {"vocab_size", p.vocab},
                                           {"hidden_size", p.hidden},
                                           {"intermediate_size", p.intermediate},
                                           {"num_hidden_layers", p.layers},
                                           {"num_attention_heads", p.heads},
                                           {"num_key_value_heads", p.kv_heads},
                                           {"head_dim", p.hidden / p.heads},
                                           {"hidden_act", "silu"},
                                           {"max_position_embeddings", p.positions},
                                           {"rms_norm_eps", 1e-5},
                                           {"rope_theta", p.theta},
                                           {"rope_scaling", p.rope_factor > 1 ? scaling : nullptr},
                                           {"attention_bias", false},
                                           {"mlp_bias", false},
                                           {"tie_word_embeddings", p.tied},
                                           {"initializer_range", 0.02}};
    out.push_back({.name = p.name, .config_json = config.dump()});
  }
  return out;
}

}  // namespace cleave::inline model
