#pragma once
#include "cleave/nn/layer.h"

namespace cleave::inline nn {

/// x / sqrt(mean(x^2) + eps) * (weight + offset) over the last dim, differentiable. With an offset,
/// 16-bit inputs are multiplied in fp32. Throws c10::Error when the shapes do not fit.
///
///   x [.., D]   weight [D]   result as x
Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps, double offset = 0);

/// x / rms(x) * (weight + offset) over the last dim. x [.., D], weight [D], at first 1 - offset.
/// Throws Error(kShape) for Partial and Shard(-1); any other layout works.
class RmsNorm : public Layer {
 public:
  RmsNorm(int64_t width, double eps, double offset = 0);

 protected:
  DTensor forward(const DTensor& x, const Context& context) override;

 private:
  std::shared_ptr<Parameter> weight_;
  double eps_, offset_;
};

/// (x - mean) / std * weight + bias over the last dim. Same layouts and errors as RmsNorm.
class LayerNorm : public Layer {
 public:
  LayerNorm(int64_t width, double eps);

 protected:
  DTensor forward(const DTensor& x, const Context& context) override;

 private:
  std::shared_ptr<Parameter> weight_, bias_;
  double eps_;
};

}  // namespace cleave::inline nn
