#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "cleave/nn/layer.h"

namespace cleave::inline parallel {

/// Finds weights that a layer's forward changes in place (a running mean), where a wrap around the
/// layer would lose the change or make it twice.
class ForwardChanges {
 public:
  /// Of weights that forward can read now. Call it before forward.
  explicit ForwardChanges(const Parameters& weights);
  /// Throws Error(kUsage) if one has changed since then. `why`: what happens to the change, after
  /// "which".
  void refuse(const Layer& layer, std::string_view why) const;

 private:
  struct Weight {
    std::shared_ptr<Parameter> parameter;
    Tensor read;
    uint32_t version = 0;
  };
  std::vector<Weight> weights_;
};

}  // namespace cleave::inline parallel
