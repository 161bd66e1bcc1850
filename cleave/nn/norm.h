#pragma once
#include "cleave/nn/layer.h"

namespace cleave {

/// x / rms(x) * weight over the last dim. x [.., D], weight [D].
/// Works on whole rows in any layout but Partial and Shard(-1), which are Error(kShape).
class RmsNorm : public Layer {
 public:
  RmsNorm(int64_t width, double eps);

 protected:
  DTensor forward(const DTensor& x, const Context& context) override;

 private:
  std::shared_ptr<Parameter> weight_;
  double eps_;
};

/// (x - mean) / std * weight + bias over the last dim; layouts as RmsNorm.
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
