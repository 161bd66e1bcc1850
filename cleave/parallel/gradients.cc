#include "cleave/parallel/gradients.h"

#include <algorithm>
#include <cmath>
#include <set>

#include <ATen/ATen.h>

#include "cleave/kernels/cpu/fused.h"
#include "cleave/kernels/kernels.h"

namespace cleave {
namespace {

constexpr int64_t kBucketBytes = int64_t{32} << 20;

/// Sums one flat bucket of gradients over the axis and writes the sums back.
void sum_bucket(std::vector<Tensor>& grads, const Axis& axis, const char* site) {
  if (grads.empty()) return;
  std::vector<Tensor> flat;
  for (const Tensor& g : grads) flat.push_back(g.reshape(-1));
  const Tensor sum = axis.all_reduce(flat.size() == 1 ? flat[0] : at::cat(flat), site);
  int64_t begin = 0;
  for (Tensor& g : grads) {
    g.copy_(sum.narrow(0, begin, g.numel()).view(g.sizes()));
    begin += g.numel();
  }
  grads.clear();
}

void define_gradients(const Parameters& parameters) {
  for (const auto& p : parameters) {
    Tensor& grad = p->leaf().mutable_grad();
    if (!grad.defined()) grad = at::zeros_like(p->leaf());
  }
}

/// The gradient of a shard with others' elements as zeros, so that holders' parts can be added.
Tensor padded(const Parameter& p, const Tensor& grad) {
  Tensor whole = at::zeros(p.shape(), grad.options());
  int64_t begin = 0;
  for (const Range& r : p.ranges()) {
    whole.narrow(p.split_dim(), r.begin, r.size())
        .copy_(grad.narrow(p.split_dim(), begin, r.size()));
    begin += r.size();
  }
  return whole;
}

void take_back(const Parameter& p, const Tensor& whole, Tensor& grad) {
  int64_t begin = 0;
  for (const Range& r : p.ranges()) {
    grad.narrow(p.split_dim(), begin, r.size())
        .copy_(whole.narrow(p.split_dim(), r.begin, r.size()));
    begin += r.size();
  }
}

/// Which elements of a flat leaf this rank counts, where the leaf is.
Tensor owned_of_flat(const Parameter& p) {
  const Tensor mask = at::zeros(p.local_shape(), p.leaf().options().dtype(at::kBool));
  int64_t begin = 0;
  for (const Range& held : p.ranges()) {
    for (const Range& own : p.owned()) {
      const int64_t low = std::max(held.begin, own.begin);
      const int64_t high = std::min(held.end, own.end);
      if (low < high) mask.narrow(p.split_dim(), begin + low - held.begin, high - low).fill_(true);
    }
    begin += held.size();
  }
  return mask.flatten().narrow(0, p.flat_range().begin, p.flat_range().size());
}

/// In fp64. libtorch would make a copy of all elements in that type.
double norm_of(const Tensor& t, double power) {
  if (power == 2 && t.is_cpu() && t.is_contiguous() && is_on(Kernel::kNorm) && takes_fused({t})) {
    return fused_l2_norm(t);
  }
  return at::linalg_vector_norm(t, power, std::nullopt, false, at::kDouble).item<double>();
}

/// Norms, in fp64, of the pieces of a gradient that this rank counts.
std::vector<double> counted_norms(const Parameter& p, const Tensor& grad, double power) {
  std::vector<double> norms;
  if (!grad.defined() || p.owned().empty()) return norms;
  if (p.is_flat()) {
    if (grad.numel() == 0) return norms;
    const Tensor counted = p.is_split() && p.placement().split()->overlaps()
                               ? grad.masked_fill(owned_of_flat(p).logical_not(), 0)
                               : grad;
    return {norm_of(counted, power)};
  }
  // Owned ranges are given in the whole; places in the local tensor follow from the held ones.
  for (const Range& mine : p.owned()) {
    int64_t begin = 0;
    for (const Range& held : p.ranges()) {
      const int64_t low = std::max(mine.begin, held.begin);
      const int64_t high = std::min(mine.end, held.end);
      if (low < high && grad.numel() > 0) {
        const Tensor part = grad.dim() == 0
                                ? grad
                                : grad.narrow(p.split_dim(), begin + low - held.begin, high - low);
        norms.push_back(norm_of(part, power));
      }
      begin += held.size();
    }
  }
  return norms;
}

/// The axes of tensor parallelism and, where leaves are cut further, of data parallelism.
struct NormAxes {
  Axis tp, data;

  [[nodiscard]] Tensor all_reduce(const Tensor& t, std::string_view site, ReduceOp op) const {
    return data.all_reduce(tp.all_reduce(t, site, op), site, op);
  }
};

/// The norm of everything from the norms of this rank's pieces.
double combined(const std::vector<double>& norms, const NormAxes& axes, double power) {
  const auto reduced = [&](double value, ReduceOp op) {
    return axes.all_reduce(at::scalar_tensor(value, at::kDouble), "gradient norm", op)
        .item<double>();
  };
  double scale = 1;
  if (power != 2) {  // powers of numbers far from 1 leave fp64's range
    scale = 0;
    for (const double n : norms) scale = n > scale || std::isnan(n) ? n : scale;
    scale = reduced(scale, ReduceOp::kMax);
    if (std::isinf(power) || scale == 0 || !std::isfinite(scale)) return scale;
  }
  double sum = 0;
  for (const double n : norms) sum += std::pow(n / scale, power);
  return scale * std::pow(reduced(sum, ReduceOp::kSum), 1 / power);
}

GradientNorm norm_over(const Parameters& parameters, const NormAxes& axes, double power) {
  CLEAVE_CHECK(power > 0, Code::kUsage, "norm_type=", power,
               " is no norm; give a number above 0, or infinity");
  const at::NoGradGuard no_grad;
  std::vector<double> norms;
  size_t first_wrong = parameters.size();
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& p = *parameters[i];
    // The ranks of the data axis that hold the same whole leaf count it once.
    if (!p.is_flat() && axes.data.rank() > 0) continue;
    const Tensor grad = p.leaf().defined() ? p.leaf().grad() : Tensor();
    for (const double own : counted_norms(p, grad, power)) {
      if (!std::isfinite(own)) first_wrong = std::min(first_wrong, i);
      norms.push_back(own);
    }
  }
  GradientNorm norm;
  norm.value = combined(norms, axes, power);
  if (std::isfinite(norm.value)) return norm;
  // Each rank counts other elements: the first parameter of them all is the largest of -index.
  const Tensor index = at::scalar_tensor(-static_cast<int64_t>(first_wrong), at::kLong);
  const int64_t first =
      -axes.all_reduce(index, "gradient that is not finite", ReduceOp::kMax).item<int64_t>();
  if (first < std::ssize(parameters))
    norm.not_finite = parameters[static_cast<size_t>(first)]->name();
  return norm;
}

/// The one axis of several that has more than one rank.
void take_axis(Axis& known, const Axis& axis, const Parameter& p) {
  if (axis.size() == 1) return;
  CLEAVE_CHECK(known.size() == 1 || known == axis, Code::kUsage, p.name(), " is split over ",
               axis.name(), ", another parameter over ", known.name(),
               "; use gradient_norm and clip_gradients");
  known = axis;
}

}  // namespace

void complete_over_tp(const Parameters& parameters, std::vector<Tensor>& gradients,
                      const Axis& tp) {
  if (tp.size() == 1) return;
  std::vector<Tensor> bucket;
  std::vector<std::pair<size_t, Tensor>> overlapping;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& p = *parameters[i];
    if (!p.gradient_is_partial()) continue;
    if (p.is_split()) {
      overlapping.emplace_back(i, padded(p, gradients[i]));
      bucket.push_back(overlapping.back().second);
    } else {
      bucket.push_back(gradients[i]);
    }
  }
  sum_bucket(bucket, tp, "gradients over tp");
  for (const auto& [i, whole] : overlapping) take_back(*parameters[i], whole, gradients[i]);
}

void finish_gradients(const Parameters& parameters, const Axis& tp) {
  const at::NoGradGuard no_grad;
  define_gradients(parameters);
  std::vector<Tensor> gradients;
  for (const auto& p : parameters) gradients.push_back(p->leaf().mutable_grad());
  complete_over_tp(parameters, gradients, tp);
}

void sum_gradients(const Parameters& parameters, const Axis& dp) {
  const at::NoGradGuard no_grad;
  define_gradients(parameters);
  if (dp.size() == 1) return;
  std::vector<Tensor> bucket;
  int64_t bytes = 0;
  for (const auto& p : parameters) {
    bucket.push_back(p->leaf().mutable_grad());
    bytes += static_cast<int64_t>(bucket.back().nbytes());
    if (bytes < kBucketBytes) continue;
    sum_bucket(bucket, dp, "gradients over dp");
    bytes = 0;
  }
  sum_bucket(bucket, dp, "gradients over dp");
}

GradientNorm gradient_norm(const Parameters& parameters, const Axis& tp, double power) {
  return norm_over(parameters, {.tp = tp, .data = {}}, power);
}

double clip_factor(double norm, double max_norm) {
  const double factor = max_norm / (norm + 1e-6);
  return factor < 1 ? factor : 1;
}

void clip_gradients(const Parameters& parameters, double norm, double max_norm) {
  const double factor = clip_factor(norm, max_norm);
  if (factor == 1) return;
  const at::NoGradGuard no_grad;
  std::vector<Tensor> grads;
  for (const auto& p : parameters) {
    if (p->leaf().grad().defined()) grads.push_back(p->leaf().mutable_grad());
  }
  if (!grads.empty()) at::_foreach_mul_(grads, factor);
}

GradientNorm clip_grad_norm_of(const Parameters& parameters, double max_norm, double norm_type,
                               bool error_if_nonfinite) {
  CLEAVE_CHECK(max_norm >= 0, Code::kUsage, "max_norm=", max_norm, " must not be negative");
  NormAxes axes;
  Parameters once;
  std::set<const Parameter*> seen;
  for (const auto& p : parameters) {
    if (!seen.insert(p.get()).second) continue;
    once.push_back(p);
    take_axis(axes.tp, p->axis(), *p);
    take_axis(axes.data, p->data_axis(), *p);
  }
  GradientNorm norm = norm_over(once, axes, norm_type);
  if (std::isfinite(norm.value)) {
    clip_gradients(once, norm.value, max_norm);
    return norm;
  }
  CLEAVE_CHECK(!error_if_nonfinite, Code::kNumerics, "the gradient of ", norm.not_finite,
               " is not finite, so the norm is ", norm.value, "; nothing was scaled");
  return norm;
}

}  // namespace cleave
