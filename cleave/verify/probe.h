#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "cleave/nn/layer.h"

namespace cleave::verifying {

/// One recorded call of a layer.
struct LayerCall {
  Layer* layer = nullptr;
  DTensor x;  ///< input, before its conversion
  DTensor y;  ///< output, after its conversion
  Context context;
  int depth = 0;        ///< number of enclosing calls
  bool is_leaf = true;  ///< it calls no other layer
};

/// Wraps every layer of a model to record or perturb its calls.
class Probes {
 public:
  explicit Probes(Layer& model);

  /// Returns the calls that `forward` makes, in the order in which they end: children before
  /// parents.
  std::vector<LayerCall> record(const std::function<void()>& forward);

  /// Runs `work` with injected rounding of the relative `size` in every layer's output and its
  /// gradient.
  void perturb(double size, uint64_t seed, const std::function<void()>& work);

 private:
  class Probe;
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace cleave::verifying
