#include "cleave/model/gemma2/gemma2.h"
#include "cleave/model/gemma3/gemma3.h"

namespace cleave::inline model {

DecoderConfig gemma3_config(const Json& json) {
  DecoderConfig c = read_gemma(json,
                               {.positions = 131072,
                                .tied = true,
                                .kv_heads = 4,
                                .head_dim = 256,
                                .eos = 1,
                                .pad = 0,
                                .has_layer_rotary = true},
                               json.int_or("sliding_window_pattern", 6, 1, kMostLayers));
  c.qk_norm = QkNorm::kEachHead;
  c.logit_cap = read_soft_cap(json, "final_logit_softcapping", 0);
  read_layer_rotary(json, c);
  // transformers reads this key and does not apply it.
  refuse_setting(json, "attn_logit_softcapping");
  return c;
}

}  // namespace cleave::inline model
