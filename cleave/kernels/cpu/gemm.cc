#include "cleave/kernels/cpu/gemm.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include "cleave/kernels/cpu/reorder.h"
#include "cleave/kernels/cpu/tiles.h"
#include "cleave/kernels/cpu/wide_product.h"
#include "cleave/kernels/decode.h"
#include "cleave/kernels/device.h"
#include "cleave/runtime/kernel_switches.h"
#include "cleave/torch_internals/deferred.h"
#include "cleave/torch_internals/node.h"
#include "cleave/torch_internals/onednn.h"
#include "cleave/torch_internals/op_clock.h"

namespace cleave::inline kernels {
namespace {

bool is_for_onednn(const Tensor& x, const Tensor& weight) {
  return gemm() == Gemm::kOneDnn && x.scalar_type() == at::kFloat && x.is_cpu() &&
         weight.scalar_type() == at::kFloat && x.numel() > 0 && weight.numel() > 0;
}

/// Whether the CPU multiplies t's type in tiles (AMX).
bool is_for_tiles(const Tensor& t) {
  return t.is_cpu() && t.scalar_type() == at::kBFloat16 && t.numel() > 0 &&
         is_on(Kernel::kPanels) && has_tiles();
}

/// Whether products of t's 16-bit type are computed in fp32, which is faster on this CPU.
bool is_widened(const Tensor& t) {
  return takes_ways_of_cpu(t) && t.numel() > 0 && is_on(Kernel::kPanels) &&
         lacks_fast_products(t.scalar_type());
}

/// a b^T + bias by oneDNN's tiles, each thread some rows of a. oneDNN's own division among threads
/// is no faster than one thread where the result has few columns.
Tensor product_by_rows(const Tensor& a, const Tensor& b, const std::optional<Tensor>& bias) {
  constexpr int64_t kGrainRows = 128;
  auto shape = a.sizes().vec();
  shape.back() = b.size(0);
  Tensor result = at::empty(shape, a.options());
  const Tensor from = a.reshape({-1, a.size(-1)});
  const Tensor to = result.view({-1, b.size(0)});
  // The mode is a thread's own. A tensor of inference may not be written outside of it.
  const bool is_inference = c10::InferenceMode::is_enabled();
  at::parallel_for(0, from.size(0), kGrainRows, [&](int64_t begin, int64_t end) {
    const c10::InferenceMode inference(is_inference);
    const at::NoGradGuard no_grad;
    Tensor part = to.narrow(0, begin, end - begin);
    at::linear_out(part, from.narrow(0, begin, end - begin), b, bias);
  });
  return result;
}

Tensor float_product(const Tensor& a, const Tensor& b) {
  return is_for_onednn(a, b) ? onednn_linear(a, b, std::nullopt) : at::linear(a, b);
}

/// a b^T + bias of 16-bit matrices by fp32 products.
Tensor widened_product(const Tensor& a, const Tensor& b, const std::optional<Tensor>& bias) {
  auto shape = a.sizes().vec();
  shape.back() = b.size(0);
  Tensor result = at::empty(shape, a.options());
  multiply_in_fp32(a.reshape({-1, a.size(-1)}), b, bias, result.view({-1, b.size(0)}),
                   /*adds=*/false, float_product);
  if (!a.is_meta()) return result;
  result.reset();
  return at::linear(a, b, bias);  // a forecast counts this product
}

/// a b^T + bias by the chosen library; b [n, k].
Tensor product(const Tensor& a, const Tensor& b, const std::optional<Tensor>& bias) {
  if (is_for_onednn(a, b)) return onednn_linear(a, b, bias);
  if (is_widened(a) && is_widened(b)) return widened_product(a, b, bias);
  const bool has_threads = at::get_num_threads() > 1 && is_for_tiles(a) && is_for_tiles(b);
  return has_threads ? product_by_rows(a, b, bias) : at::linear(a, b, bias);
}

/// product() without a graph.
Tensor detached_product(const Tensor& a, const Tensor& b, const std::optional<Tensor>& bias) {
  const at::NoGradGuard no_grad;
  return product(a.detach(), b.detach(), bias ? std::optional(bias->detach()) : std::nullopt);
}

// Sums over more than kLongSum outputs are computed in parts of kPart. Over the 16,000 classes of a
// vocabulary, oneDNN is a quarter slower than over a thousand, because its sums leave the cache.
constexpr int64_t kLongSum = 8192, kPart = 1024;

/// Input gradient g w; g [rows, n], w [n, k].
Tensor input_gradient(const Tensor& g, const Tensor& w) {
  const int64_t n = w.size(0);
  if (n < kLongSum || !is_for_onednn(g, w)) return product(g, w.t(), std::nullopt);
  Tensor sum;
  for (int64_t begin = 0; begin < n; begin += kPart) {
    const int64_t width = std::min(kPart, n - begin);
    const Tensor part = g.narrow(1, begin, width);
    const Tensor weights = w.narrow(0, begin, width).t();
    sum = begin == 0 ? onednn_linear(part, weights, std::nullopt)
                     : onednn_linear_add(part, weights, sum);
  }
  return sum;
}

template <class T>
Tensor transposed_copy(const Tensor& t) {
  Tensor out = at::empty({t.size(1), t.size(0)}, t.options());
  if (t.is_meta()) return out;
  const TransposeJob<T> job{.columns = t.size(1),
                            .from = static_cast<const T*>(t.const_data_ptr()),
                            .from_stride = t.stride(0),
                            .to = static_cast<T*>(out.mutable_data_ptr()),
                            .to_stride = t.size(0)};
  at::parallel_for(0, t.size(0), 64,
                   [&](int64_t begin, int64_t end) { transpose_rows(job, begin, end); });
  return out;
}

/// t^T, copied if oneDNN or a conversion would otherwise copy the transposed view itself, which is
/// slower; for tiles it takes twice the time.
Tensor transposed(const Tensor& t) {
  if (t.stride(1) != 1) return t.t();
  if (is_for_onednn(t, t)) return transposed_copy<float>(t);
  return is_for_tiles(t) || is_widened(t) ? transposed_copy<uint16_t>(t) : t.t();
}

/// [.., n] as [rows, n]. reshape({-1, n}) would refuse an empty shard, where n is 0.
Tensor as_matrix(const Tensor& t) {
  const int64_t rows = c10::multiply_integers(t.sizes().slice(0, t.sizes().size() - 1));
  return t.reshape({rows, t.size(-1)});
}

/// Weight gradient, in the memory order of `weight`, so that a stored transpose is not copied.
Tensor weight_gradient(const Tensor& g, const Tensor& x, const Tensor& weight) {
  const Tensor rows = as_matrix(x);
  return weight.is_contiguous() ? product(transposed(g), rows.t(), std::nullopt)
                                : product(transposed(rows), g.t(), std::nullopt).t();
}

/// The backward of affine(). It reads the values, and of x only if the weight is trained: the input
/// of a frozen one is not kept.
struct AffineBackward {
  std::optional<SavedInput> x;
  std::vector<int64_t> shape;  ///< of x
  SavedInput weight;           ///< without its graph
  Tensor deferred_weight;      ///< with the graph to its leaf; empty if nothing is deferred
  std::shared_ptr<DeferredGradients> deferred;
  bool x_grad, weight_grad, bias_grad;

  variable_list operator()(variable_list&& grads) const {
    const Tensor g = as_matrix(grads[0]);
    const Tensor& values = weight.get();
    variable_list out(3);
    if (x_grad) out[0] = input_gradient(g, values).view(shape);
    if (deferred) {
      deferred->add(deferred_weight,
                    [g, x = x->get(), values] { return weight_gradient(g, x, values); });
    } else if (weight_grad) {
      out[1] = weight_gradient(g, x->get(), values);
    }
    if (bias_grad) out[2] = g.sum(0);
    return out;
  }
};

/// Counts the product of x [.., in] and weight [out, in] for an OpClock, and those of its backward.
void count_products(const Tensor& x, const Tensor& weight) {
  const int64_t in = weight.size(1), out = weight.size(0);
  if (x.numel() == 0 || weight.numel() == 0) return;
  const int64_t rows = x.numel() / in;
  count_product({.rows = rows, .inner = in, .columns = out});
  if (needs_grad(x)) count_product({.rows = rows, .inner = out, .columns = in});
  if (needs_grad(weight)) count_product({.rows = out, .inner = rows, .columns = in});
}

/// The same for affine_frozen(), but for its forward product with the frozen weight.
void count_frozen_products(const Tensor& x, const Tensor& y, const std::optional<LowRank>& branch) {
  const int64_t in = x.size(-1), out = y.size(-1), rows = x.numel() / in;
  const bool x_grad = needs_grad(x);
  if (x_grad) count_product({.rows = rows, .inner = out, .columns = in});
  if (!branch) return;
  const int64_t rank = branch->a.size(0);
  count_product({.rows = rank, .inner = in, .columns = rows});
  count_product({.rows = rows, .inner = rank, .columns = out});
  if (!needs_grad(branch->a) && !needs_grad(branch->b)) return;
  count_product({.rows = rank, .inner = out, .columns = rows});
  count_product({.rows = rank, .inner = rows, .columns = in});
  count_product({.rows = rank, .inner = rows, .columns = out});
  if (x_grad) count_product({.rows = rows, .inner = rank, .columns = in});
}

/// a b^T for a [rank, k] with few rows and b [n, k]. Use it instead of b a^T, whose result has few
/// columns: that took 2 to 3 times as long on Zen 4.
Tensor narrow_product(const Tensor& a, const Tensor& b) {
  const bool has_few = is_on(Kernel::kFewRows) && takes_few_rows(a, b);
  return has_few ? few_rows_linear(a, b, std::nullopt) : product(a, b, std::nullopt);
}

/// y += a b in place; y [.., n], a [rows, rank], b [rank, n].
void add_product(const Tensor& y, const Tensor& a, const Tensor& b) {
  if (y.numel() == 0) return;
  const Tensor to = y.view({a.size(0), b.size(1)});
  const bool widens = is_widened(a) && is_widened(b);
  if (widens) multiply_in_fp32(a, b.t(), std::nullopt, to, /*adds=*/true, float_product);
  if (!widens || a.is_meta()) to.addmm_(a, b);
}

/// Whether AffineBackward computes gradients of these faster than libtorch's backward.
bool has_own_backward(const Tensor& x, const Tensor& weight) {
  const bool transposes = needs_grad(weight) && is_for_tiles(x) && is_for_tiles(weight);
  return transposes || is_for_onednn(x, weight) || (is_widened(x) && is_widened(weight));
}

}  // namespace

Tensor affine(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
              const std::shared_ptr<DeferredGradients>& deferred) {
  const bool weight_grad = needs_grad(weight);
  const bool has_backward = weight_grad || needs_grad(x) || (bias && needs_grad(*bias));
  if (!has_backward && is_on(Kernel::kFewRows)) {
    if (takes_few_rows(x, weight)) return few_rows_linear(x, weight, bias);
    if (std::optional<Tensor> y = device_few_rows(x, weight, bias)) return *std::move(y);
  }
  count_products(x, weight);
  if (!has_backward) return product(x, weight, bias);
  const bool defers = weight_grad && deferred != nullptr && DeferredGradients::takes(weight);
  if (!defers && !has_own_backward(x, weight)) return at::linear(x, weight, bias);
  Tensor y = detached_product(x, weight, bias);
  const bool bias_grad = bias && needs_grad(*bias);
  const bool x_grad = needs_grad(x);
  if (!x_grad && !weight_grad && !bias_grad) return y;
  connect("linear", {x, defers ? Tensor() : weight, bias.value_or(Tensor())}, {y},
          AffineBackward{.x = weight_grad ? std::optional(SavedInput("linear", x)) : std::nullopt,
                         .shape = x.sizes().vec(),
                         .weight = SavedInput("linear", weight),
                         .deferred_weight = defers ? weight : Tensor(),
                         .deferred = defers ? deferred : nullptr,
                         .x_grad = x_grad,
                         .weight_grad = weight_grad,
                         .bias_grad = bias_grad});
  return y;
}

Tensor matrix_product(const Tensor& a, const Tensor& b) {
  if (a.stride(1) != 1) return product(transposed(a.t()), b.t(), std::nullopt);
  return b.stride(1) == 1 ? input_gradient(a, b) : product(a, b.t(), std::nullopt);
}

Tensor affine_frozen(const Tensor& x, std::function<Tensor()> weight,
                     const std::optional<Tensor>& bias, const std::optional<LowRank>& branch) {
  Tensor y, narrow;  // [rank, rows]
  {
    const at::NoGradGuard no_grad;
    y = affine(x.detach(), weight(), bias);
    if (branch) {
      narrow = narrow_product(branch->a.detach(), as_matrix(x.detach())).mul_(branch->scale);
      add_product(y, narrow.t(), branch->b.detach().t());
    }
  }
  if (x.numel() > 0 && y.numel() > 0) count_frozen_products(x, y, branch);
  const bool x_grad = needs_grad(x);
  const bool branch_grad = branch && (needs_grad(branch->a) || needs_grad(branch->b));
  if (!x_grad && !branch_grad) return y;
  if (!branch) {
    connect("linear_frozen", {x}, {y},
            [weight = std::move(weight), shape = x.sizes().vec()](variable_list&& grads) {
              const Tensor g = as_matrix(grads[0]);
              return variable_list{input_gradient(g, weight()).view(shape)};
            });
    return y;
  }
  connect("linear_low_rank", {x, branch->a, branch->b}, {y},
          [weight = std::move(weight), saved = SavedInput("linear", x),
           saved_a = SavedInput("adapter", branch->a), saved_b = SavedInput("adapter", branch->b),
           scale = branch->scale, narrow, x_grad](variable_list&& grads) {
            const Tensor g = as_matrix(grads[0]);
            const Tensor &input = saved.get(), &a = saved_a.get(), &b = saved_b.get();
            const Tensor of_narrow = narrow_product(b.t(), g).mul_(scale);
            variable_list out(3);
            out[1] = product(of_narrow, as_matrix(input).t(), std::nullopt);
            out[2] = product(narrow, g.t(), std::nullopt).t();
            if (!x_grad) return out;
            out[0] = input_gradient(g, weight()).view(input.sizes());
            add_product(out[0], of_narrow.t(), a);
            return out;
          });
  return y;
}

}  // namespace cleave::inline kernels
