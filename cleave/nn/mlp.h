#pragma once
#include "cleave/nn/layer_options.h"
#include "cleave/nn/linear.h"

namespace cleave::inline nn {

/// Applies an activation element-wise.
Tensor activate(Activation activation, const Tensor& x);

/// act(gate) * up.
Tensor gated(Activation activation, const Tensor& gate, const Tensor& up);

struct MlpOptions {
  int64_t hidden = 0;
  int64_t intermediate = 0;
  bool bias = false;
  bool gated = true;
  Activation activation = Activation::kSilu;
  Init init = Init::normal(0.02);
  Init out_init = Init::normal(0.02);
};

/// down_proj(act(gate_proj(x)) * up_proj(x)), or without a gate down_proj(act(up_proj(x))).
///
///   x [.., D]   result [.., D]
class Mlp : public Layer {
 public:
  explicit Mlp(const MlpOptions& options);

 protected:
  DTensor forward(const DTensor& x, const Context& context) override;

 private:
  Activation activation_;
  std::unique_ptr<Linear> gate_proj_;
  Linear up_proj_, down_proj_;
};

}  // namespace cleave::inline nn
