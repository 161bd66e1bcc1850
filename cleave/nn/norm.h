#pragma once
#include "cleave/nn/layer.h"

namespace cleave {

/// x / rms(x) * weight over the last dim. x [.., D], weight [D].
/// Throws Error(kShape) for Partial and Shard(-1); any other layout works.
class RmsNorm : public Layer {
 public:
  RmsNorm(int64_t width, double eps);

 protected:
  DTensor forward(const DTensor& x, const Context& context) override;

 private:
  std::shared_ptr<Parameter> weight_;
  double eps_;
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

}  // namespace cleave
