#include "cleave/model/mistral/mistral.h"

namespace cleave::inline model {

DecoderConfig mistral_config(const Json& json) {
  DecoderConfig c = read_decoder(json, {.positions = 131072, .kv_heads = 8, .eos = 2});
  set_window(json, read_window(json, 4096), c);
  refuse_setting(json, "attention_bias");
  refuse_setting(json, "mlp_bias");
  return c;
}

}  // namespace cleave::inline model
