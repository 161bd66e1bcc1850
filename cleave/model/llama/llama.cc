#include "cleave/model/llama/llama.h"

#include "cleave/model/decoder/decoder.h"
#include "cleave/model/llama/config.h"

namespace cleave {

std::unique_ptr<Model> make_llama(const Json& config) {
  return make_decoder(config, llama_config(config));
}

}  // namespace cleave
