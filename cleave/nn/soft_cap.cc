#include "cleave/nn/soft_cap.h"

#include <ATen/ATen.h>

#include "cleave/torch_internals/node.h"

namespace cleave::inline nn {

Tensor soft_cap(const Tensor& x, double cap) {
  const bool has_backward = needs_grad(x);
  const at::NoGradGuard no_grad;
  Tensor y = at::div(x.detach(), cap).tanh_().mul_(cap);
  if (!has_backward) return y;
  connect("soft_cap", {x}, {y},
          [kept = SavedInput("soft_cap", y), cap](variable_list&& grads) -> variable_list {
            return {at::tanh_backward(grads[0], kept.get() / cap)};
          });
  return y;
}

}  // namespace cleave::inline nn
