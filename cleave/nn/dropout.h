#pragma once
#include "cleave/kernels/cpu/dropout.h"
#include "cleave/nn/layer.h"

namespace cleave::inline nn {

/// Zeroes elements with probability p and scales the rest by 1/(1-p), while context.training.
///
/// Whether an element is dropped is a function of (run seed, this layer's path, the number of its
/// call by the layer above in this pass, step, global element index), so masks are bit-identical on
/// every layout. The global element index combines the sample's index in the step's batch and the
/// position in the sample.
///
///   x [B, ..], dim 0 is the micro-batch's sequences   result as x
///
/// Throws Error(kShape) for Partial input.
class Dropout : public Layer {
 public:
  explicit Dropout(double p);

 protected:
  DTensor forward(const DTensor& x, const Context& context) override;

 private:
  double p_;
};

/// The mask of a tensor laid out like `x`: 1/(1-p) or 0 per element, in x's type. `stream` names
/// the random stream, normally the layer's path.
Tensor dropout_mask(const DTensor& x, double p, const std::string& stream, const Context& context);

/// The same for attention probabilities [B, H, T, S].
Tensor dropout_mask(const AttentionDropout& dropout, const Tensor& probabilities);

/// The key of a dropout stream.
uint64_t dropout_key(const std::string& stream, const Context& context);

}  // namespace cleave::inline nn
