#include "cleave/model/olmo2/olmo2.h"

namespace cleave::inline model {

DecoderConfig olmo2_config(const Json& json) {
  DecoderConfig c = read_decoder(json, {.norm_eps = 1e-5, .eos = 50279, .pad = 1});
  c.qkv_bias = c.out_bias = json.bool_or("attention_bias", false);
  c.norms = BlockNorms::kOutputs;
  c.qk_norm = QkNorm::kAllHeads;
  set_window(json, 0, c);
  refuse_window(json);
  refuse_setting(json, "mlp_bias");
  refuse_setting(json, "clip_qkv");
  return c;
}

}  // namespace cleave::inline model
