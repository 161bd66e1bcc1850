#include "cleave/nn/layer_options.h"

#include <map>
#include <string_view>

#include "cleave/base/error.h"

namespace cleave::inline nn {

Activation activation_from_name(const std::string& name) {
  // The names of transformers. Those of a function differ in how it is computed.
  static const std::map<std::string_view, Activation> kNames{
      {"silu", Activation::kSilu},
      {"swish", Activation::kSilu},
      {"gelu", Activation::kGelu},
      {"gelu_python", Activation::kGelu},
      {"gelu_new", Activation::kGeluTanh},
      {"gelu_fast", Activation::kGeluTanh},
      {"gelu_accurate", Activation::kGeluTanh},
      {"gelu_python_tanh", Activation::kGeluTanh},
      {"gelu_pytorch_tanh", Activation::kGeluTanh},
      {"relu", Activation::kRelu}};
  const auto found = kNames.find(name);
  if (found != kNames.end()) return found->second;
  throw Error(Code::kFormat, str("activation '", name,
                                 "' is unknown; expected silu, gelu, gelu_new, "
                                 "gelu_pytorch_tanh, relu or another name of these functions"));
}

}  // namespace cleave::inline nn
