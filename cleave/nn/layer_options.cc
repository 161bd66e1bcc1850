#include "cleave/nn/layer_options.h"

#include "cleave/base/error.h"

namespace cleave::inline nn {

Activation activation_from_name(const std::string& name) {
  if (name == "silu" || name == "swish") return Activation::kSilu;
  if (name == "gelu") return Activation::kGelu;
  if (name == "gelu_new" || name == "gelu_pytorch_tanh") return Activation::kGeluTanh;
  if (name == "relu") return Activation::kRelu;
  throw Error(Code::kFormat, str("activation '", name,
                                 "' is unknown; expected silu, gelu, gelu_new, "
                                 "gelu_pytorch_tanh or relu"));
}

}  // namespace cleave::inline nn
