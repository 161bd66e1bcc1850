#pragma once
#include "cleave/nn/layer.h"

namespace cleave {

/// Zeroes elements with probability p and scales the rest by 1/(1-p), while context.training.
///
/// An element's fate is a function of (run seed, this layer's path, step, its global index: sample
/// number and place within the sample), so masks are the same bits on every layout.
/// x [B, ..]: dim 0 is the micro-batch's rows. Partial input is Error(kShape).
class Dropout : public Layer {
 public:
  explicit Dropout(double p);

 protected:
  DTensor forward(const DTensor& x, const Context& context) override;

 private:
  double p_;
};

/// The keep mask of a tensor laid out like `x`, 1/(1-p) or 0 per element, of x's type; `stream`
/// names the place in the model.
Tensor dropout_mask(const DTensor& x, double p, const std::string& stream, const Context& context);

}  // namespace cleave
