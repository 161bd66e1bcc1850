#include "cleave/nn/mlp.h"

#include <ATen/ATen.h>

#include "cleave/kernels/cpu/fused.h"
#include "cleave/runtime/kernel_switches.h"

namespace cleave::inline nn {

Tensor activate(Activation activation, const Tensor& x) {
  switch (activation) {
    case Activation::kSilu:
      return at::silu(x);
    case Activation::kGelu:
      return at::gelu(x, "none");
    case Activation::kGeluTanh:
      return is_on(Kernel::kGate) && takes_fused({x}) ? fused_gelu(x) : at::gelu(x, "tanh");
    case Activation::kRelu:
      return at::relu(x);
  }
  CLEAVE_BUG("unknown activation ", static_cast<int>(activation));
}

Tensor gated(Activation activation, const Tensor& gate, const Tensor& up) {
  const bool is_fused =
      activation == Activation::kSilu && is_on(Kernel::kGate) && gate.sizes() == up.sizes();
  return is_fused && takes_fused({gate, up}) ? fused_gate(gate, up)
                                             : activate(activation, gate) * up;
}

Mlp::Mlp(const MlpOptions& o)
    : activation_(o.activation),
      up_proj_({.in_features = o.hidden,
                .out_features = o.intermediate,
                .bias = o.bias,
                .init = o.init,
                .default_style = DefaultStyle::kColwise}),
      down_proj_({.in_features = o.intermediate,
                  .out_features = o.hidden,
                  .bias = o.bias,
                  .init = o.out_init,
                  .default_style = DefaultStyle::kRowwise}) {
  if (o.gated) {
    gate_proj_ = std::make_unique<Linear>(LinearOptions{.in_features = o.hidden,
                                                        .out_features = o.intermediate,
                                                        .bias = o.bias,
                                                        .init = o.init,
                                                        .default_style = DefaultStyle::kColwise});
    add("gate_proj", *gate_proj_, "w1");
  }
  add("up_proj", up_proj_, "w3");
  add("down_proj", down_proj_, "w2");
}

DTensor Mlp::forward(const DTensor& x, const Context& context) {
  if (!gate_proj_) {
    const auto act = [this](const Tensor& t) { return activate(activation_, t); };
    return down_proj_(map(act, up_proj_(x, context)), context);
  }
  const DTensor shared = gate_proj_->shared_input(x);
  const DTensor gate = (*gate_proj_)(shared, context);
  const DTensor up = up_proj_(shared, context);
  const auto product = [this](const Tensor& g, const Tensor& u) {
    return gated(activation_, g, u);
  };
  return down_proj_(mine(map(product, gate, up)), context);
}

}  // namespace cleave::inline nn
