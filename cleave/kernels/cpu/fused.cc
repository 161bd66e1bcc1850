#include "cleave/kernels/cpu/fused.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "cleave/kernels/cpu/rows.h"
#include "cleave/kernels/device.h"
#include "cleave/torch_internals/node.h"
#include "cleave/torch_internals/op_work.h"

namespace cleave::inline kernels {
namespace {

// Minimal number of elements per thread.
constexpr int64_t kGrain = 32768;

/// Runs work(begin, end) in parallel over [0, count), unless `of` is a meta tensor (dry run).
template <class Work>
void in_parts(const Tensor& of, int64_t count, int64_t grain, const Work& work) {
  if (!of.is_meta()) at::parallel_for(0, count, grain, work);
}

/// Runs on_device(kernels) if the device of `of` has kernels, else in_parts().
template <class Work, class OnDevice>
void run(const Tensor& of, int64_t count, int64_t grain, const Work& work,
         const OnDevice& on_device) {
  if (const DeviceKernels* kernels = device_kernels(of)) {
    on_device(*kernels);
  } else {
    in_parts(of, count, grain, work);
  }
}

/// run() over the elements of `of`. Threads divide them at whole vectors: elements that do not fill
/// one are computed one by one, which rounds differently.
template <class Work, class OnDevice>
void run_elements(const Tensor& of, const Work& work, const OnDevice& on_device) {
  constexpr int64_t kBlock = 64;
  const int64_t count = of.numel();
  const auto of_blocks = [&](int64_t begin, int64_t end) {
    work(begin * kBlock, std::min(count, end * kBlock));
  };
  run(of, (count + kBlock - 1) / kBlock, kGrain / kBlock, of_blocks, on_device);
}

template <class T>
T* data_of(const Tensor& t) {
  return t.is_meta() ? nullptr : static_cast<T*>(t.data_ptr());
}

bool is_bf16(const Tensor& t) {
  return t.scalar_type() == at::kBFloat16;
}

int64_t rows_of(const Tensor& t) {
  return t.numel() / t.size(-1);
}

int64_t grain_of_rows(int64_t width) {
  return std::max<int64_t>(1, kGrain / width);
}

/// Rows per block of a sum. Blocks are added in pairs, so results do not depend on the number of
/// threads.
constexpr int64_t kRowsOfBlock = 64;

/// The sum of `blocks` [N, ..], which it overwrites. The order of the additions depends only on N:
/// libtorch's sum has another order at the borders between threads.
Tensor sum_in_pairs(const Tensor& blocks) {
  constexpr int64_t kColumns =
      1024;  // of a task, so that its part of the blocks stays in the cache
  const int64_t count = blocks.size(0), width = blocks.stride(0);
  auto* rows = data_of<float>(blocks);
  in_parts(blocks, (width + kColumns - 1) / kColumns, 1, [&](int64_t begin, int64_t end) {
    for (int64_t c = begin * kColumns; c < end * kColumns; c += kColumns) {
      const int64_t last = std::min(width, c + kColumns);
      for (int64_t step = 1; step < count; step *= 2) {
        for (int64_t b = 0; b + step < count; b += 2 * step) {
          float* to = rows + b * width;
          const float* from = to + step * width;
          for (int64_t i = c; i < last; ++i) to[i] += from[i];
        }
      }
    }
  });
  return blocks[0].clone();  // not a view, which would keep all blocks in memory
}

RmsNormJob norm_job(const Tensor& x, const Tensor& weight, const Tensor& scales, double offset) {
  return {.width = x.size(-1),
          .is_bf16 = is_bf16(x),
          .eps = 0,
          .offset = static_cast<float>(offset),
          .x = data_of<const void>(x),
          .weight = data_of<const void>(weight),
          .y = nullptr,
          .scales = data_of<float>(scales),
          .dy = nullptr,
          .dx = nullptr};
}

/// `moments` [2, rows] fp32 holds the rows' means and scales.
LayerNormJob layer_norm_job(const Tensor& x, const Tensor& weight, const Tensor& moments,
                            double eps) {
  auto* means = data_of<float>(moments);
  return {.width = x.size(-1),
          .is_bf16 = is_bf16(x),
          .eps = eps,
          .x = data_of<const void>(x),
          .weight = data_of<const void>(weight),
          .means = means,
          .scales = means + (means == nullptr ? 0 : rows_of(x))};
}

GateJob gate_job(const Tensor& gate, const Tensor& up) {
  return {
      .is_bf16 = is_bf16(gate), .gate = data_of<const void>(gate), .up = data_of<const void>(up)};
}

/// Runs work(begin, end, sums) over blocks of the rows of `x`, where `work` adds to `sums`
/// [num_sums, D]. On a device with kernels runs on_device(kernels, parts), which writes the sums of
/// every kNormPart rows to `parts` [.., num_sums, D]. Returns the total [num_sums, D] fp32.
template <class Work, class OnDevice>
Tensor sums_over_rows(const Tensor& x, int64_t num_sums, const Work& work,
                      const OnDevice& on_device) {
  const int64_t rows = rows_of(x);
  if (const DeviceKernels* kernels = device_kernels(x)) {
    const Tensor parts = at::empty({(rows + kNormPart - 1) / kNormPart, num_sums, x.size(-1)},
                                   x.options().dtype(at::kFloat));
    on_device(*kernels, data_of<float>(parts));
    return parts.sum(0);
  }
  const int64_t blocks = (rows + kRowsOfBlock - 1) / kRowsOfBlock;
  const Tensor sums = at::zeros({blocks, num_sums, x.size(-1)}, x.options().dtype(at::kFloat));
  auto* of_blocks = data_of<float>(sums);
  in_parts(x, blocks, grain_of_rows(kRowsOfBlock * x.size(-1)), [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      work(b * kRowsOfBlock, std::min(rows, (b + 1) * kRowsOfBlock),
           of_blocks + b * num_sums * x.size(-1));
    }
  });
  return sum_in_pairs(sums);
}

/// The gradients of a NormedSum, of which `sum` may be undefined.
struct NormGradients {
  Tensor sum, normed;
};

/// The gradients that a backward function received: those of the sum, if there is one, and of its
/// norm.
NormGradients norm_gradients(const variable_list& grads, const Tensor& x) {
  const auto given = [](const Tensor& t) { return t.defined() ? t.contiguous() : t; };
  NormGradients d{.sum = grads.size() > 1 ? given(grads[0]) : Tensor(),
                  .normed = given(grads.back())};
  if (!d.normed.defined()) d.normed = at::zeros_like(x);
  return d;
}

/// Sets what a job of backward reads and writes.
template <class Job>
void set_gradients(Job& job, const NormGradients& d, const Tensor& dx) {
  job.dy = data_of<const void>(d.normed);
  job.dsum = d.sum.defined() ? data_of<const void>(d.sum) : nullptr;
  job.dx = data_of<void>(dx);
}

void count_norm_backward(const Tensor& x, const NormGradients& d, const Tensor& dx) {
  d.sum.defined() ? count_pass({&x, &d.normed, &d.sum}, {&dx}) : count_pass({&x, &d.normed}, {&dx});
}

variable_list norm_backward(RmsNormJob job, const Tensor& x, const Tensor& weight,
                            const NormGradients& d) {
  const Tensor dx = at::empty_like(x);
  set_gradients(job, d, dx);
  const Tensor sums = sums_over_rows(
      x, 1,
      [&](int64_t begin, int64_t end, float* dweight) {
        rms_norm_backward_rows(job, begin, end, dweight);
      },
      [&](const DeviceKernels& kernels, float* parts) {
        kernels.rms_norm_backward(job, rows_of(x), parts);
      });
  count_norm_backward(x, d, dx);
  return {dx, sums[0].to(weight.scalar_type())};
}

variable_list layer_norm_backward(const Tensor& x, const Tensor& weight, const Tensor& moments,
                                  const NormGradients& d) {
  const Tensor dx = at::empty_like(x);
  LayerNormJob job = layer_norm_job(x, weight, moments, 0);
  set_gradients(job, d, dx);
  const Tensor sums = sums_over_rows(
      x, 2,
      [&](int64_t begin, int64_t end, float* to) {
        layer_norm_backward_rows(job, begin, end, to, to + job.width);
      },
      [&](const DeviceKernels& kernels, float* parts) {
        kernels.layer_norm_backward(job, rows_of(x), parts);
      });
  count_norm_backward(x, d, dx);
  // Copies: as views of one tensor, a change of one gradient would count as a change of both.
  const auto own = [&](const Tensor& sum) {
    return sum.to(weight.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
  };
  return {dx, own(sums[0]), own(sums[1])};
}

}  // namespace

bool takes_fused(std::initializer_list<Tensor> inputs) {
  const Tensor& first = *inputs.begin();
  const at::ScalarType type = first.scalar_type();
  if (type != at::kFloat && type != at::kBFloat16) return false;
  return std::all_of(inputs.begin(), inputs.end(), [&](const Tensor& t) {
    const bool is_supported = t.is_cpu() || t.is_meta() || device_kernels(t) != nullptr;
    return is_supported && t.device() == first.device() && t.scalar_type() == type && t.numel() > 0;
  });
}

namespace {

/// The terms of a sum in contiguous memory, and the tensor of their sum. With one term, the sum is
/// this term.
struct NormInputs {
  Tensor a, b, sum;
  explicit NormInputs(const Terms& x) : a(without_history(x.a).contiguous()), sum(a) {
    if (!x.b.defined()) return;
    b = without_history(x.b).contiguous();
    sum = at::empty_like(a);
  }
  template <class Job>
  void set(Job& job) const {
    if (!b.defined()) return;
    job.x = data_of<const void>(a);
    job.added = data_of<const void>(b);
    job.sum = data_of<void>(sum);
  }
  void count(const Tensor& y) const {
    b.defined() ? count_pass({&a, &b}, {&sum, &y}) : count_pass({&a}, {&y});
  }
};

bool any_needs_grad(const Terms& x) {
  return needs_grad(x.a) || (x.b.defined() && needs_grad(x.b));
}

/// Connects a norm: backward(gradients) gives those of the sum and of the `weights`.
void connect_norm(const char* name, const Terms& x, const variable_list& weights,
                  const NormedSum& result,
                  const std::function<variable_list(const NormGradients&)>& backward) {
  const bool is_sum = x.b.defined();
  variable_list inputs{x.a}, outputs{result.normed};
  if (is_sum) {
    inputs.push_back(x.b);
    outputs.insert(outputs.begin(), result.sum);
  }
  inputs.insert(inputs.end(), weights.begin(), weights.end());
  connect(
      name, inputs, outputs,
      [is_sum, of = result.sum.detach(), backward](variable_list&& grads) {
        variable_list out = backward(norm_gradients(grads, of));
        if (is_sum) out.insert(out.begin(), out[0]);
        return out;
      },
      UnusedOutputs::kUndefined);
}

}  // namespace

NormedSum fused_rms_norm(const Terms& x, const Tensor& weight, double eps, double offset) {
  const bool has_backward = any_needs_grad(x) || needs_grad(weight);
  const at::NoGradGuard no_grad;
  const NormInputs in(x);
  const Tensor w = without_history(weight).contiguous();
  NormedSum result{.sum = in.sum, .normed = at::empty_like(in.sum)};
  const Tensor scales = at::empty({rows_of(in.sum)}, in.sum.options().dtype(at::kFloat));
  RmsNormJob job = norm_job(in.sum, w, scales, offset);
  in.set(job);
  job.eps = eps;
  job.y = data_of<void>(result.normed);
  run(
      in.sum, rows_of(in.sum), grain_of_rows(job.width),
      [&](int64_t begin, int64_t end) { rms_norm_rows(job, begin, end); },
      [&](const DeviceKernels& kernels) { kernels.rms_norm(job, rows_of(in.sum)); });
  in.count(result.normed);
  if (!has_backward) return result;
  connect_norm("rms_norm", x, {weight}, result,
               [saved = SavedInput("rms_norm", in.sum), weight = SavedInput("rms_norm", w), scales,
                offset](const NormGradients& d) {
                 const Tensor &of = saved.get(), &by = weight.get();
                 return norm_backward(norm_job(of, by, scales, offset), of, by, d);
               });
  return result;
}

Tensor fused_rms_norm(const Tensor& x, const Tensor& weight, double eps, double offset) {
  return fused_rms_norm(Terms{.a = x, .b = {}}, weight, eps, offset).normed;
}

NormedSum fused_layer_norm(const Terms& x, const Tensor& weight, const Tensor& bias, double eps) {
  const bool has_backward = any_needs_grad(x) || needs_grad(weight) || needs_grad(bias);
  const at::NoGradGuard no_grad;
  const NormInputs in(x);
  const Tensor w = without_history(weight).contiguous();
  const Tensor b = bias.contiguous();
  NormedSum result{.sum = in.sum, .normed = at::empty_like(in.sum)};
  const Tensor moments = at::empty({2, rows_of(in.sum)}, in.sum.options().dtype(at::kFloat));
  LayerNormJob job = layer_norm_job(in.sum, w, moments, eps);
  in.set(job);
  job.bias = data_of<const void>(b);
  job.y = data_of<void>(result.normed);
  run(
      in.sum, rows_of(in.sum), grain_of_rows(job.width),
      [&](int64_t begin, int64_t end) { layer_norm_rows(job, begin, end); },
      [&](const DeviceKernels& kernels) { kernels.layer_norm(job, rows_of(in.sum)); });
  in.count(result.normed);
  if (!has_backward) return result;
  connect_norm("layer_norm", x, {weight, bias}, result,
               [of = SavedInput("layer_norm", in.sum), weight = SavedInput("layer_norm", w),
                moments](const NormGradients& d) {
                 return layer_norm_backward(of.get(), weight.get(), moments, d);
               });
  return result;
}

Tensor fused_layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  return fused_layer_norm(Terms{.a = x, .b = {}}, weight, bias, eps).normed;
}

namespace {

Tensor gelu_gradient(const Tensor& x, const Tensor& dy) {
  Tensor dx = at::empty(x.sizes(), x.options());
  const GeluJob job{.is_bf16 = is_bf16(x),
                    .x = data_of<const void>(x),
                    .dy = data_of<const void>(dy),
                    .dx = data_of<void>(dx)};
  run_elements(
      x, [&](int64_t begin, int64_t end) { gelu_backward_range(job, begin, end); },
      [&](const DeviceKernels& kernels) { kernels.gelu_backward(job, x.numel()); });
  count_pass({&x, &dy}, {&dx});
  return dx;
}

}  // namespace

Tensor fused_gelu(const Tensor& x) {
  const bool has_backward = needs_grad(x);
  const at::NoGradGuard no_grad;
  const Tensor in = without_history(x).contiguous();
  Tensor y = at::empty(in.sizes(), in.options());
  const GeluJob job{.is_bf16 = is_bf16(in), .x = data_of<const void>(in), .y = data_of<void>(y)};
  run_elements(
      in, [&](int64_t begin, int64_t end) { gelu_range(job, begin, end); },
      [&](const DeviceKernels& kernels) { kernels.gelu(job, in.numel()); });
  count_pass({&in}, {&y});
  if (!has_backward) return y;
  connect("gelu", {x}, {y}, [saved = SavedInput("gelu", in)](variable_list&& grads) {
    return variable_list{gelu_gradient(saved.get(), grads[0].contiguous())};
  });
  return y;
}

namespace {

variable_list gate_gradients(const Tensor& gate, const Tensor& up, const Tensor& dy) {
  variable_list d{at::empty_like(gate), at::empty_like(up)};
  GateJob job = gate_job(gate, up);
  job.dy = data_of<const void>(dy);
  job.dgate = data_of<void>(d[0]);
  job.dup = data_of<void>(d[1]);
  run_elements(
      gate, [&](int64_t begin, int64_t end) { gate_backward_range(job, begin, end); },
      [&](const DeviceKernels& kernels) { kernels.gate_backward(job, gate.numel()); });
  count_pass({&gate, &up, &dy}, {&d[0], &d[1]});
  return d;
}

}  // namespace

Tensor fused_gate(const Tensor& gate, const Tensor& up) {
  const bool has_backward = needs_grad(gate) || needs_grad(up);
  const at::NoGradGuard no_grad;
  const Tensor g = without_history(gate).contiguous();
  const Tensor u = without_history(up).contiguous();
  Tensor y = at::empty_like(g);
  GateJob job = gate_job(g, u);
  job.y = data_of<void>(y);
  run_elements(
      g, [&](int64_t begin, int64_t end) { gate_range(job, begin, end); },
      [&](const DeviceKernels& kernels) { kernels.gate(job, g.numel()); });
  count_pass({&g, &u}, {&y});
  if (!has_backward) return y;
  connect("gate", {gate, up}, {y},
          [of_gate = SavedInput("gate", g), of_up = SavedInput("gate", u)](variable_list&& grads) {
            return gate_gradients(of_gate.get(), of_up.get(), grads[0].contiguous());
          });
  return y;
}

namespace {

Tensor rotated(const Tensor& x, const Tensor& cos, const Tensor& sin, float direction) {
  const Tensor in = x.stride(3) == 1 ? x : x.contiguous();
  Tensor out = at::empty({x.size(0), x.size(2), x.size(1), x.size(3)}, x.options()).transpose(1, 2);
  const int64_t num_tokens = x.size(2);
  const int64_t half = x.size(3) / 2;
  const bool has_batch_angles = cos.dim() == 3 && cos.size(0) > 1;
  count_pass({&in}, {&out});
  if (const DeviceKernels* kernels = device_kernels(x)) {
    const auto strides = [](const Tensor& t) {
      return RotaryJob::Strides{.batch = t.stride(0), .head = t.stride(1), .token = t.stride(2)};
    };
    kernels->rotary({.is_bf16 = is_bf16(x),
                     .direction = direction,
                     .batch = x.size(0),
                     .heads = x.size(1),
                     .tokens = num_tokens,
                     .half = half,
                     .x = in.const_data_ptr(),
                     .y = out.mutable_data_ptr(),
                     .of_x = strides(in),
                     .of_y = strides(out),
                     .cos = cos.const_data_ptr(),
                     .sin = sin.const_data_ptr(),
                     .has_batch_angles = has_batch_angles});
    return out;
  }
  const int64_t of_sequence = has_batch_angles ? num_tokens * half : 0;
  const auto element = static_cast<int64_t>(x.element_size());
  const auto at_element = [element](const Tensor& t, int64_t offset) {
    return static_cast<char*>(t.data_ptr()) + offset * element;
  };
  in_parts(x, x.size(0) * num_tokens, grain_of_rows(x.size(1) * x.size(3)),
           [&](int64_t begin, int64_t end) {
             RotaryRow row{.num_heads = x.size(1),
                           .width = x.size(3),
                           .is_bf16 = is_bf16(x),
                           .direction = direction};
             for (int64_t i = begin; i < end; ++i) {
               const int64_t b = i / num_tokens;
               const int64_t t = i % num_tokens;
               row.cos = at_element(cos, b * of_sequence + t * half);
               row.sin = at_element(sin, b * of_sequence + t * half);
               rotary_row(row, at_element(in, b * in.stride(0) + t * in.stride(2)), in.stride(1),
                          at_element(out, b * out.stride(0) + t * out.stride(2)), out.stride(1));
             }
           });
  return out;
}

}  // namespace

Tensor fused_rotary(const Tensor& x, const Tensor& cos, const Tensor& sin) {
  return differentiable(
      "rotary", x, [&](const Tensor& t) { return rotated(t, cos, sin, 1); },
      [cos = SavedInput("rotary", cos), sin = SavedInput("rotary", sin)](const Tensor& g) {
        return rotated(g, cos.get(), sin.get(), -1);
      });
}

SoftmaxSums softmax_sums(const Tensor& logits) {
  const Tensor z = logits.contiguous();
  const auto options = z.options().dtype(at::kFloat);
  SoftmaxSums out{.largest = at::empty({z.size(0)}, options),
                  .sums = at::empty({z.size(0)}, options)};
  const LogitsJob job{.width = z.size(1),
                      .is_bf16 = is_bf16(z),
                      .logits = data_of<const void>(z),
                      .largest = data_of<float>(out.largest),
                      .sums = data_of<float>(out.sums)};
  run(
      z, z.size(0), grain_of_rows(job.width),
      [&](int64_t begin, int64_t end) { softmax_sums_rows(job, begin, end); },
      [&](const DeviceKernels& kernels) { kernels.softmax_sums(job, z.size(0)); });
  count_pass({&z}, {});
  return out;
}

Tensor softmax_gradient(const Tensor& logits, const SoftmaxGradient& arguments) {
  const Tensor z = logits.contiguous();
  Tensor out = at::empty_like(z);
  const LogitsGradientJob job{.width = z.size(1),
                              .is_bf16 = is_bf16(z),
                              .logits = data_of<const void>(z),
                              .gradient = data_of<void>(out),
                              .largest = data_of<const float>(arguments.rows.largest),
                              .sums = data_of<const float>(arguments.rows.sums),
                              .factor = data_of<const float>(arguments.factor),
                              .target = data_of<const int64_t>(arguments.target),
                              .spread = static_cast<float>(arguments.spread),
                              .weight = static_cast<float>(arguments.weight)};
  run(
      z, z.size(0), grain_of_rows(job.width),
      [&](int64_t begin, int64_t end) { softmax_gradient_rows(job, begin, end); },
      [&](const DeviceKernels& kernels) { kernels.softmax_gradient(job, z.size(0)); });
  count_pass({&z}, {&out});
  return out;
}

Tensor add_in_fp32(const Tensor& sum, const Tensor& x) {
  const at::NoGradGuard no_grad;
  const bool is_on_host = (sum.is_cpu() || sum.is_meta()) && x.device() == sum.device();
  const bool has_kernel = is_bf16(x) && (is_bf16(sum) || sum.scalar_type() == at::kFloat) &&
                          sum.strides() == x.strides() && x.is_non_overlapping_and_dense();
  if (!is_on_host || !has_kernel) return sum.to(at::kFloat).add_(x);
  Tensor y = is_bf16(sum) ? at::empty_like(sum, sum.options().dtype(at::kFloat)) : sum;
  const SumJob job{.is_sum_bf16 = is_bf16(sum),
                   .sum = data_of<const void>(sum),
                   .x = data_of<const uint16_t>(x),
                   .y = data_of<float>(y)};
  in_parts(x, x.numel(), kGrain, [&](int64_t begin, int64_t end) { sum_range(job, begin, end); });
  count_pass({&sum, &x}, {&y});
  return y;
}

double fused_l2_norm(const Tensor& t) {
  constexpr int64_t kPart = int64_t{1} << 20;  // partial sums are added in order
  std::vector<double> sums(static_cast<size_t>((t.numel() + kPart - 1) / kPart));
  at::parallel_for(0, static_cast<int64_t>(sums.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      sums[static_cast<size_t>(i)] = sum_of_squares_range(t.const_data_ptr(), is_bf16(t), i * kPart,
                                                          std::min(t.numel(), (i + 1) * kPart));
    }
  });
  return std::sqrt(std::accumulate(sums.begin(), sums.end(), 0.0));
}

}  // namespace cleave::inline kernels
