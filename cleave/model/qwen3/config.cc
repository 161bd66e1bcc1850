#include "cleave/model/qwen2/qwen2.h"
#include "cleave/model/qwen3/qwen3.h"

namespace cleave::inline model {

DecoderConfig qwen3_config(const Json& json) {
  DecoderConfig c = read_decoder(json, {.positions = 32768, .kv_heads = 32, .head_dim = 128});
  c.qkv_bias = c.out_bias = json.bool_or("attention_bias", false);
  c.qk_norm = QkNorm::kEachHead;
  read_qwen_windows(json, c);
  refuse_setting(json, "mlp_bias");
  return c;
}

}  // namespace cleave::inline model
