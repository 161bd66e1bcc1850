#include "cleave/model/mixtral/mixtral.h"

namespace cleave::inline model {

DecoderConfig mixtral_config(const Json& json) {
  DecoderConfig c = read_decoder(
      json, {.positions = 131072, .norm_eps = 1e-5, .theta = 1e6, .kv_heads = 8, .eos = 2});
  set_window(json, read_window(json, 0), c);
  refuse_setting(json, "attention_bias");
  refuse_setting(json, "mlp_bias");
  c.experts =
      read_experts(json, c.intermediate, {.num_experts = 8, .top_k = 2, .has_mixtral_names = true});
  for (DecoderLayer& layer : c.layers) layer.has_experts = true;
  return c;
}

}  // namespace cleave::inline model
