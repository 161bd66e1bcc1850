#include "cleave/torch_internals/deferred.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

namespace cleave::inline torch_internals {

bool DeferredGradients::takes(const Tensor& weight) {
  for (const torch::autograd::Node* at = weight.grad_fn().get(); at != nullptr;) {
    const std::string name = at->name();
    if (name == "torch::autograd::AccumulateGrad") return true;
    if (name != "TBackward0" && name != "ToCopyBackward0") return false;
    at = at->next_edge(0).function.get();
  }
  return true;
}

void DeferredGradients::run() {
  for (auto& [weight, gradient] : std::exchange(waiting_, {})) {
    Tensor grad;
    {
      const at::NoGradGuard no_grad;
      grad = std::exchange(gradient, nullptr)();  // frees the activation
    }
    torch::autograd::backward({weight}, {grad});
  }
}

}  // namespace cleave::inline torch_internals
