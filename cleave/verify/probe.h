#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "cleave/nn/layer.h"

namespace cleave::verifying {

/// One call of a Layer, as its door saw it.
struct LayerCall {
  Layer* layer = nullptr;
  DTensor x;  ///< as it came
  DTensor y;  ///< as it left
  Context context;
  int depth = 0;        ///< doors around it
  bool is_leaf = true;  ///< no Layer is called inside it
};

/// Wraps at every door of a model, which look on or stay out of the way.
class Probes {
 public:
  explicit Probes(Layer& model);

  /// The calls that `forward` makes, in the order in which they end: children before parents.
  std::vector<LayerCall> record(const std::function<void()>& forward);

  /// Runs `work` while every Layer's output and its gradient are changed as rounding of the
  /// relative `size` changes them.
  void perturb(double size, uint64_t seed, const std::function<void()>& work);

 private:
  class Probe;
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace cleave::verifying
