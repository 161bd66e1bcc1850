#include "cleave/torch_internals/onednn.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>

namespace cleave::inline torch_internals {
namespace {

using LinearPointwise = Tensor(const Tensor&, const Tensor&, const std::optional<Tensor>&,
                               c10::string_view, c10::List<std::optional<at::Scalar>>,
                               std::optional<c10::string_view>);

using LinearBinary = Tensor(const Tensor&, const Tensor&, const Tensor&,
                            const std::optional<Tensor>&, c10::string_view);

}  // namespace

Tensor onednn_linear(const Tensor& a, const Tensor& b, const std::optional<Tensor>& bias) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("mkldnn::_linear_pointwise", "")
                             .typed<LinearPointwise>();
  return op.call(a, b, bias, "none", c10::List<std::optional<at::Scalar>>(), "");
}

Tensor onednn_linear_add(const Tensor& a, const Tensor& b, const Tensor& added) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("mkldnn::_linear_pointwise", "binary")
                             .typed<LinearBinary>();
  return op.call(a, added, b, std::nullopt, "add");
}

}  // namespace cleave::inline torch_internals
