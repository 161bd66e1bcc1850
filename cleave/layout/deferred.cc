#include "cleave/layout/deferred.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

namespace cleave {

void DeferredGradients::run() {
  for (auto& [weight, gradient] : std::exchange(waiting_, {})) {
    Tensor grad;
    {
      const at::NoGradGuard no_grad;
      grad = std::exchange(gradient, nullptr)();  // lets go of the activation
    }
    torch::autograd::backward({weight}, {grad});
  }
}

}  // namespace cleave
