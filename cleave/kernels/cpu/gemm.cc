#include "cleave/kernels/cpu/gemm.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/version.h>

#include "cleave/base/error.h"
#include "cleave/base/hash.h"
#include "cleave/kernels/cpu/transpose.h"
#include "cleave/runtime/kernel_switches.h"
#include "cleave/torch_internals/deferred.h"
#include "cleave/torch_internals/node.h"

namespace cleave {
namespace {

std::atomic<Gemm> chosen{Gemm::kMkl};

using LinearPointwise = Tensor(const Tensor&, const Tensor&, const std::optional<Tensor>&,
                               c10::string_view, c10::List<std::optional<at::Scalar>>,
                               std::optional<c10::string_view>);

/// a b^T + bias by oneDNN; a [.., k], b [n, k]. Transposed views are not copied.
Tensor onednn_linear(const Tensor& a, const Tensor& b, const std::optional<Tensor>& bias) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("mkldnn::_linear_pointwise", "")
                             .typed<LinearPointwise>();
  return op.call(a, b, bias, "none", c10::List<std::optional<at::Scalar>>(), "");
}

using LinearBinary = Tensor(const Tensor&, const Tensor&, const Tensor&,
                            const std::optional<Tensor>&, c10::string_view);

/// a b^T + added by oneDNN; added [.., n].
Tensor onednn_linear_add(const Tensor& a, const Tensor& b, const Tensor& added) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("mkldnn::_linear_pointwise", "binary")
                             .typed<LinearBinary>();
  return op.call(a, added, b, std::nullopt, "add");
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
  onednn_linear(x, w, std::nullopt);  // warm-up: both libraries initialize at their first call
  at::linear(x, w);
  const double onednn = seconds_of([&] { onednn_linear(x, w, std::nullopt); });
  const double mkl = seconds_of([&] { at::linear(x, w); });
  return onednn < mkl ? Gemm::kOneDnn : Gemm::kMkl;
}

namespace {

/// The cache file of this machine's choice; "" without $XDG_CACHE_HOME and $HOME.
std::string choice_file() {
  const char* cache =
      std::getenv("XDG_CACHE_HOME");       // NOLINT(concurrency-mt-unsafe): nothing sets it
  const char* home = std::getenv("HOME");  // NOLINT(concurrency-mt-unsafe)
  if (cache == nullptr && home == nullptr) return "";
  const std::string folder = cache != nullptr ? cache : str(home, "/.cache");
  std::ifstream info("/proc/cpuinfo");
  std::string line, cpu;
  while (cpu.empty() && std::getline(info, line)) {
    if (line.starts_with("model name")) cpu = line;
  }
  return str(folder, "/cleave/gemm-", to_hex(hash_bytes(cpu + TORCH_VERSION)));
}

Gemm remembered_or_faster() {
  const std::string path = choice_file();
  std::string text;
  if (std::ifstream file(path); file >> text) {
    if (text == name(Gemm::kMkl)) return Gemm::kMkl;
    if (text == name(Gemm::kOneDnn)) return Gemm::kOneDnn;
  }
  const Gemm faster = faster_gemm();
  if (!path.empty()) {
    // If the folder is not writable, the next run only has to time again.
    std::error_code ignored;
    std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
    std::ofstream(path) << name(faster) << '\n';
  }
  return faster;
}

}  // namespace

void choose_gemm(const std::string& flag, const Axis& everyone) {
  CLEAVE_CHECK(flag == "auto" || flag == "mkl" || flag == "onednn", Code::kUsage, "--gemm ", flag,
               " is unknown; choose auto, mkl or onednn");
  Gemm choice = flag == "onednn" ? Gemm::kOneDnn : Gemm::kMkl;
  if (flag == "auto") {
    Tensor agreed = at::zeros({1}, at::kLong);
    if (everyone.rank() == 0) agreed.fill_(static_cast<int64_t>(remembered_or_faster()));
    everyone.broadcast_(agreed, 0, "choice of gemm");
    choice = static_cast<Gemm>(agreed.item<int64_t>());
  }
  set_gemm(choice);
}

namespace {

/// a b^T + bias by the chosen library; b [n, k].
Tensor product(const Tensor& a, const Tensor& b, const std::optional<Tensor>& bias) {
  return is_for_onednn(a, b) ? onednn_linear(a, b, bias) : at::linear(a, b, bias);
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

/// t^T, copied if oneDNN would otherwise copy the transposed view itself, which is slower.
Tensor transposed(const Tensor& t) {
  if (!is_for_onednn(t, t) || t.stride(1) != 1) return t.t();
  const Tensor out = at::empty({t.size(1), t.size(0)}, t.options());
  const TransposeJob job{.columns = t.size(1),
                         .from = t.const_data_ptr<float>(),
                         .from_stride = t.stride(0),
                         .to = out.mutable_data_ptr<float>(),
                         .to_stride = t.size(0)};
  at::parallel_for(0, t.size(0), 64,
                   [&](int64_t begin, int64_t end) { transpose_rows(job, begin, end); });
  return out;
}

/// [.., n] as [rows, n]. reshape({-1, n}) would refuse an empty shard, where n is 0.
Tensor as_matrix(const Tensor& t) {
  const int64_t rows = c10::multiply_integers(t.sizes().slice(0, t.sizes().size() - 1));
  return t.reshape({rows, t.size(-1)});
}

}  // namespace

Tensor affine(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
              const std::shared_ptr<DeferredGradients>& deferred) {
  const bool weight_grad = needs_grad(weight);
  const bool has_backward = weight_grad || needs_grad(x) || (bias && needs_grad(*bias));
  if (!has_backward && is_on(Kernel::kFewRows) && takes_few_rows(x, weight)) {
    return few_rows_linear(x, weight, bias);
  }
  const bool defers = weight_grad && deferred != nullptr && DeferredGradients::takes(weight);
  if (!is_for_onednn(x, weight) && !defers) return at::linear(x, weight, bias);
  Tensor y;
  {
    const at::NoGradGuard no_grad;
    y = product(x.detach(), weight.detach(), bias ? std::optional(bias->detach()) : std::nullopt);
  }
  const bool bias_grad = bias && needs_grad(*bias);
  const bool x_grad = needs_grad(x);
  if (!x_grad && !weight_grad && !bias_grad) return y;
  // Backward reads the values; a deferred gradient also needs the graph from the weight to its
  // leaf.
  connect("linear", {x, defers ? Tensor() : weight, bias.value_or(Tensor())}, {y},
          [x = x.detach(), values = weight.detach(), weight = defers ? weight : Tensor(), x_grad,
           weight_grad, bias_grad, deferred = defers ? deferred : nullptr](variable_list&& grads) {
            const Tensor g = as_matrix(grads[0]);
            const auto of_weight = [g, x, values] {
              const Tensor rows = as_matrix(x);
              // In the weight's memory order, so that a stored transpose is not copied.
              return values.is_contiguous() ? product(transposed(g), rows.t(), std::nullopt)
                                            : product(transposed(rows), g.t(), std::nullopt).t();
            };
            variable_list out(3);
            if (x_grad) out[0] = input_gradient(g, values).view(x.sizes());
            if (weight.defined()) {
              deferred->add(weight, of_weight);
            } else if (weight_grad) {
              out[1] = of_weight();
            }
            if (bias_grad) out[2] = g.sum(0);
            return out;
          });
  return y;
}

Tensor affine_frozen(const Tensor& x, std::function<Tensor()> weight,
                     const std::optional<Tensor>& bias) {
  Tensor y;
  {
    const at::NoGradGuard no_grad;
    y = affine(x.detach(), weight(), bias);
  }
  if (!needs_grad(x)) return y;
  connect("linear_frozen", {x}, {y},
          [weight = std::move(weight), shape = x.sizes().vec()](variable_list&& grads) {
            const Tensor values = weight();
            const Tensor g = grads[0].reshape({-1, values.size(0)});
            return variable_list{input_gradient(g, values).view(shape)};
          });
  return y;
}

}  // namespace cleave
