#include "cleave/kernels/cpu/gemm.h"

#include <algorithm>
#include <atomic>
#include <chrono>

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include "cleave/base/error.h"
#include "cleave/layout/node.h"

namespace cleave {
namespace {

std::atomic<Gemm> chosen{Gemm::kMkl};

using LinearPointwise = Tensor(const Tensor&, const Tensor&, const std::optional<Tensor>&,
                               c10::string_view, c10::List<std::optional<at::Scalar>>,
                               std::optional<c10::string_view>);

/// a b^T + bias by oneDNN; a [.., k], b [n, k], transposed views are taken as they are.
Tensor onednn_linear(const Tensor& a, const Tensor& b, const std::optional<Tensor>& bias) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("mkldnn::_linear_pointwise", "")
                             .typed<LinearPointwise>();
  return op.call(a, b, bias, "none", c10::List<std::optional<at::Scalar>>(), "");
}

bool is_for_onednn(const Tensor& x, const Tensor& weight) {
  return gemm() == Gemm::kOneDnn && x.scalar_type() == at::kFloat && x.is_cpu() &&
         weight.scalar_type() == at::kFloat && x.numel() > 0 && weight.numel() > 0;
}

double seconds_of(const std::function<void()>& work) {
  double best = 1e9;
  for (int i = 0; i < 5; ++i) {
    const auto start = std::chrono::steady_clock::now();
    work();
    best = std::min(
        best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

}  // namespace

std::string_view name(Gemm gemm) {
  return gemm == Gemm::kMkl ? "mkl" : "onednn";
}
void set_gemm(Gemm gemm) {
  chosen = gemm;
}
Gemm gemm() {
  return chosen;
}

Gemm faster_gemm() {
  const at::NoGradGuard no_grad;
  const Tensor x = at::ones({256, 512});
  const Tensor w = at::ones({1024, 512});
  onednn_linear(x, w, std::nullopt);  // both libraries plan at their first call
  at::linear(x, w);
  const double onednn = seconds_of([&] { onednn_linear(x, w, std::nullopt); });
  const double mkl = seconds_of([&] { at::linear(x, w); });
  return onednn < mkl ? Gemm::kOneDnn : Gemm::kMkl;
}

Tensor affine(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
  if (!is_for_onednn(x, weight)) return at::linear(x, weight, bias);
  Tensor y;
  {
    const at::NoGradGuard no_grad;
    y = onednn_linear(x.detach(), weight.detach(),
                      bias ? std::optional(bias->detach()) : std::nullopt);
  }
  const bool bias_grad = bias && needs_grad(*bias);
  if (!needs_grad(x) && !needs_grad(weight) && !bias_grad) return y;
  const bool x_grad = needs_grad(x);
  const bool weight_grad = needs_grad(weight);
  connect("linear", {x, weight, bias.value_or(Tensor())}, {y},
          [x = x.detach(), weight = weight.detach(), x_grad, weight_grad,
           bias_grad](variable_list&& grads) {
            const Tensor g = grads[0].reshape({-1, weight.size(0)});
            variable_list out(3);
            if (x_grad) out[0] = onednn_linear(g, weight.t(), std::nullopt).view(x.sizes());
            if (weight_grad) {
              const Tensor flat = x.reshape({-1, weight.size(1)});
              out[1] = onednn_linear(g.t(), flat.t(), std::nullopt);
            }
            if (bias_grad) out[2] = g.sum(0);
            return out;
          });
  return y;
}

}  // namespace cleave
