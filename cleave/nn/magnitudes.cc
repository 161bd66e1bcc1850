#include "cleave/nn/magnitudes.h"

#include <ATen/ATen.h>

#include "cleave/torch_internals/node.h"

namespace cleave::inline nn {

Tensor with_magnitudes(const Tensor& x, const Tensor& magnitudes, const Tensor& norms) {
  Tensor y, factors;
  {
    const at::NoGradGuard no_grad;
    factors = magnitudes.detach() / norms;
    y = at::mul(x.detach(), factors).to(x.scalar_type());
  }
  const bool x_grad = needs_grad(x);
  const bool magnitudes_grad = needs_grad(magnitudes);
  if (!x_grad && !magnitudes_grad) return y;
  connect("with_magnitudes", {x, magnitudes}, {y},
          [values = magnitudes_grad ? x.detach() : Tensor(), factors, norms, x_grad,
           magnitudes_grad](variable_list&& grads) {
            const Tensor& g = grads[0];
            variable_list out(2);
            if (x_grad) out[0] = at::mul(g, factors).to(g.scalar_type());
            if (magnitudes_grad) {
              const Tensor products = at::mul(g.to(norms.scalar_type()), values);
              out[1] = products.reshape({-1, norms.size(0)}).sum(0).div_(norms);
            }
            return out;
          });
  return y;
}

Tensor squares_of_sum(const Tensor& squares, const Tensor& cross, const LowRankProduct& low) {
  // |w + s b A|^2 = |w|^2 + 2 s b (A w^T) + s^2 b (A A^T) b^T for each row w of W and b of B.
  const at::NoGradGuard no_grad;
  const at::ScalarType type = squares.scalar_type();
  const Tensor a = low.a.detach().to(type);
  const Tensor b = low.b.detach().to(type);
  const Tensor mixed = (b * cross.t().to(type)).sum(1);
  const Tensor own = (b.matmul(a.matmul(a.t())) * b).sum(1);
  return squares + mixed * (2 * low.scale) + own * (low.scale * low.scale);
}

}  // namespace cleave::inline nn
