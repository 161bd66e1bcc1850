#include "cleave/model/phi3/phi3.h"

namespace cleave::inline model {

DecoderConfig phi3_config(const Json& json) {
  DecoderConfig c = read_decoder(
      json,
      {.positions = 4096, .norm_eps = 1e-5, .eos = 32000, .pad = 32000, .has_phi3_rotary = true});
  c.is_fused = true;
  set_window(json, read_window(json, 0), c);
  for (const char* key : {"attention_bias", "mlp_bias", "resid_pdrop", "embd_pdrop"}) {
    refuse_setting(json, key);
  }
  return c;
}

}  // namespace cleave::inline model
