#pragma once
#include "cleave/model/facts.h"
#include "cleave/nn/rotary_options.h"

namespace cleave {

/// The Llama family's config.json, both dialects: rope_theta with rope_scaling, or rope_parameters.
struct LlamaConfig {
  ModelFacts facts;
  int64_t intermediate = 0;
  int64_t head_dim = 0;
  double norm_eps = 1e-6;
  double init_range = 0.02;
  bool attention_bias = false;
  bool mlp_bias = false;
  bool tied = false;
  Activation activation = Activation::kSilu;
  RotaryOptions rotary;

  /// Throws Error(kFormat) naming key, value, range and byte.
  static LlamaConfig from_json(const Json& json);
};

/// Meta's params.json as a Hugging Face config.json; `vocab_size` is used if the file says -1.
Json llama_config_from_meta(const Json& params, int64_t vocab_size);

}  // namespace cleave
