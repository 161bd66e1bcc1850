#include "cleave/parallel/gradients.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include <ATen/ATen.h>

#include "cleave/kernels/cpu/fused.h"
#include "cleave/kernels/device.h"
#include "cleave/layout/shard_geometry.h"
#include "cleave/nn/gradient_state.h"
#include "cleave/runtime/kernel_switches.h"

namespace cleave::inline parallel {
namespace {

constexpr int64_t kBucketBytes = int64_t{32} << 20;

/// Sums one flat bucket of gradients over the axis and writes the sums back.
void sum_bucket(std::vector<Tensor>& grads, const Axis& axis, const char* site) {
  if (grads.empty()) return;
  std::vector<Tensor> flat;
  flat.reserve(grads.size());
  for (const Tensor& g : grads) flat.push_back(g.reshape(-1));
  const Tensor sum = axis.all_reduce(flat.size() == 1 ? flat[0] : at::cat(flat), site);
  int64_t begin = 0;
  for (Tensor& g : grads) {
    g.copy_(sum.narrow(0, begin, g.numel()).view(g.sizes()));
    begin += g.numel();
  }
  grads.clear();
}

/// The trained parameters with memory on this rank whose gradients are not summed over the axis
/// yet. Makes undefined gradients zeros.
Parameters not_yet_summed(const Parameters& parameters, const Axis& axis) {
  Parameters out;
  for (const auto& p : parameters) {
    if (p->ownership() == Parameter::Ownership::kNotOwned || !p->is_trained()) continue;
    Tensor& grad = p->leaf().mutable_grad();
    if (!grad.defined()) {
      check_complete(*p);
      grad = at::zeros_like(p->leaf());
    }
    if (!is_summed(*p, axis)) out.push_back(p);
  }
  return out;
}

/// Whether other ranks of the axis have other shards of a flat leaf.
bool has_other_shards(const Parameter& p, const Axis& axis) {
  if (!p.is_flat()) return false;
  const std::vector<int> ranks = axis.ranks(), shards = p.data_axis().ranks();
  return std::ranges::count_if(
             ranks, [&](int rank) { return std::ranges::find(shards, rank) != shards.end(); }) > 1;
}

/// A shard's gradient in the whole shape, zeros elsewhere, so that shards that overlap can be
/// added.
Tensor padded(const Parameter& p, const Tensor& grad) {
  Tensor whole = at::zeros(p.shape(), grad.options());
  for (const auto& [range, local] : pieces_of(p.ranges())) {
    whole.narrow(p.split_dim(), range.begin, range.size())
        .copy_(grad.narrow(p.split_dim(), local, range.size()));
  }
  return whole;
}

/// Copies the shard's part of a whole gradient.
void unpad(const Parameter& p, const Tensor& whole, Tensor& grad) {
  for (const auto& [range, local] : pieces_of(p.ranges())) {
    grad.narrow(p.split_dim(), local, range.size())
        .copy_(whole.narrow(p.split_dim(), range.begin, range.size()));
  }
}

/// Mask of the elements of a flat leaf that this rank counts, on the leaf's device.
Tensor owned_of_flat(const Parameter& p) {
  const Tensor mask = at::zeros(p.local_shape(), p.leaf().options().dtype(at::kBool));
  for (const auto& [range, local] : pieces_of(p.ranges(), p.owned())) {
    mask.narrow(p.split_dim(), local, range.size()).fill_(true);
  }
  return mask.flatten().narrow(0, p.flat_range().begin, p.flat_range().size());
}

/// In fp64, of no dims. The fused kernel makes no fp64 copy of all elements, as libtorch does.
Tensor norm_of(const Tensor& t, double power) {
  if (power == 2 && t.is_cpu() && t.is_contiguous() && is_on(Kernel::kNorm) && takes_fused({t})) {
    return at::scalar_tensor(fused_l2_norm(t), at::kDouble);
  }
  return at::linalg_vector_norm(t, power, std::nullopt, false, at::kDouble);
}

/// The pieces of a gradient that this rank counts.
std::vector<Tensor> counted_pieces(const Parameter& p, const Tensor& grad) {
  if (!grad.defined() || p.owned().empty() || grad.numel() == 0) return {};
  if (p.is_flat()) {
    return {p.is_split() && p.placement().split()->overlaps()
                ? grad.masked_fill(owned_of_flat(p).logical_not(), 0)
                : grad};
  }
  std::vector<Tensor> pieces;
  for (const auto& [range, local] : pieces_of(p.ranges(), p.owned())) {
    pieces.push_back(grad.dim() == 0 ? grad : grad.narrow(p.split_dim(), local, range.size()));
  }
  return pieces;
}

/// Norms in fp64, read together: on a device, each read waits for it.
std::vector<double> norms_of(const std::vector<Tensor>& pieces, double power) {
  if (pieces.empty()) return {};
  const bool has_kernels = std::ranges::all_of(
      pieces, [](const Tensor& piece) { return device_kernels(piece) != nullptr; });
  if (power == 2 && has_kernels && is_on(Kernel::kNorm)) {
    return l2_norms(*device_kernels(pieces[0]), pieces);
  }
  std::vector<Tensor> norms;
  norms.reserve(pieces.size());
  for (const Tensor& piece : pieces) norms.push_back(norm_of(piece, power));
  const Tensor all = at::stack(norms).to(at::kCPU);
  const double* values = all.const_data_ptr<double>();
  return {values, values + norms.size()};
}

/// The axes of tensor parallelism, of data parallelism where it shards leaves, and of the pipeline.
struct NormAxes {
  Axis tp, data, stages;

  [[nodiscard]] Tensor all_reduce(const Tensor& t, std::string_view site, ReduceOp op) const {
    return stages.all_reduce(data.all_reduce(tp.all_reduce(t, site, op), site, op), site, op);
  }
};

/// The name of the first parameter, in stage order, whose gradient is not finite; "" if only the
/// sum of finite numbers is not. The same on every rank. `first` is its index in this rank's list,
/// or the length of the list.
std::string first_not_finite(const Parameters& parameters, size_t first, const NormAxes& axes) {
  constexpr int64_t kStage = int64_t{1} << 32;
  constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  const int64_t own =
      first < parameters.size() ? kStage * axes.stages.rank() + static_cast<int64_t>(first) : kNone;
  // Ranks count different elements. The smallest index of all is the negated maximum of -index.
  const Tensor place = at::scalar_tensor(-own, at::kLong);
  const int64_t found =
      -axes.all_reduce(place, "gradient that is not finite", ReduceOp::kMax).item<int64_t>();
  if (found == kNone) return "";
  // Stages have different lists: the stage with the parameter sends its name.
  const auto root = static_cast<int>(found / kStage);
  std::string name;
  if (axes.stages.rank() == root) name = parameters[static_cast<size_t>(found % kStage)]->name();
  if (axes.stages.size() == 1) return name;
  Tensor size = at::scalar_tensor(std::ssize(name), at::kLong);
  axes.stages.broadcast_(size, root, "name of a gradient that is not finite");
  name.resize(static_cast<size_t>(size.item<int64_t>()));
  Tensor text = at::empty({std::ssize(name)}, at::kByte);
  std::copy(name.begin(), name.end(), text.mutable_data_ptr<uint8_t>());
  axes.stages.broadcast_(text, root, "name of a gradient that is not finite");
  std::copy_n(text.const_data_ptr<uint8_t>(), name.size(), name.begin());
  return name;
}

/// The norm over all ranks from the norms of this rank's pieces.
double combined(const std::vector<double>& norms, const NormAxes& axes, double power) {
  const auto reduced = [&](double value, ReduceOp op) {
    return axes.all_reduce(at::scalar_tensor(value, at::kDouble), "gradient norm", op)
        .item<double>();
  };
  double scale = 1;
  if (power != 2) {  // powers could overflow or underflow fp64, so scale by the largest
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
               " is not a norm; give a number above 0, or infinity");
  const at::NoGradGuard no_grad;
  std::vector<Tensor> pieces;
  std::vector<size_t> owners;  // indices of the parameters
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& p = *parameters[i];
    // Data ranks hold the same whole leaf, and the first one counts it; but each has own experts.
    if (!p.is_flat() && !p.copies() && axes.data.rank() > 0) continue;
    for (Tensor& piece : counted_pieces(p, p.leaf().defined() ? p.leaf().grad() : Tensor())) {
      pieces.push_back(std::move(piece));
      owners.push_back(i);
    }
  }
  const std::vector<double> norms = norms_of(pieces, power);
  size_t first_wrong = parameters.size();
  for (size_t i = norms.size(); i-- > 0;) {
    if (!std::isfinite(norms[i])) first_wrong = owners[i];
  }
  GradientNorm norm;
  norm.value = combined(norms, axes, power);
  if (std::isfinite(norm.value)) return norm;
  if (std::isnan(norm.value)) norm.value = NAN;  // NaN's sign is unspecified
  norm.not_finite = first_not_finite(parameters, first_wrong, axes);
  return norm;
}

/// Keeps the one axis with more than one rank; Error(kUsage) for a second one.
void take_axis(Axis& known, const Axis& axis, const Parameter& p) {
  if (axis.size() == 1) return;
  CLEAVE_CHECK(known.size() == 1 || has_same_ranks(known, axis), Code::kUsage, p.name(),
               " is sharded over ", axis.name(), ", another parameter over ", known.name(),
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
  for (const auto& [i, whole] : overlapping) unpad(*parameters[i], whole, gradients[i]);
}

void finish_gradients(const Parameters& parameters, const Axis& tp) {
  const at::NoGradGuard no_grad;
  const Parameters rest = not_yet_summed(parameters, tp);
  std::vector<Tensor> gradients;
  for (const auto& p : rest) gradients.push_back(p->leaf().mutable_grad());
  complete_over_tp(rest, gradients, tp);
  for (const auto& p : rest) record_sum(*p, tp);
}

void sum_gradients(const Parameters& parameters, const Axis& dp) {
  const at::NoGradGuard no_grad;
  const Parameters rest = not_yet_summed(parameters, dp);
  for (const auto& p : rest) {
    CLEAVE_CHECK(
        !p->copies(), Code::kUsage, p->name(),
        " belongs to an expert, and --ep gives other ranks other experts; use complete() of the "
        "GradientSync, which sums it over the ranks that have this expert");
    CLEAVE_CHECK(!has_other_shards(*p, dp), Code::kUsage, p->name(), " is sharded over ",
                 p->data_axis().name(),
                 ", whose ranks have its sum already, and some of them are in ", dp.name(),
                 ": a sum over it would add different shards; sum over the ranks that "
                 "have the same shard");
  }
  std::vector<Tensor> bucket;
  int64_t bytes = 0;
  for (const auto& p : rest) {
    bucket.push_back(p->leaf().mutable_grad());
    bytes += static_cast<int64_t>(bucket.back().nbytes());
    if (bytes < kBucketBytes) continue;
    sum_bucket(bucket, dp, "gradients over dp");
    bytes = 0;
  }
  sum_bucket(bucket, dp, "gradients over dp");
  for (const auto& p : rest) {
    record_scaled(*p);
    record_sum(*p, dp);
  }
}

void average_gradients(const Parameters& parameters, const Axis& tp, const Axis& dp) {
  const at::NoGradGuard no_grad;
  finish_gradients(parameters, tp);
  sum_gradients(parameters, dp);
  Parameters sums;
  for (const auto& p : trained_of(parameters)) {
    const bool is_here = p->ownership() != Parameter::Ownership::kNotOwned && p->is_trained();
    if (is_here && !is_mean(*p)) sums.push_back(p);
  }
  if (dp.size() > 1) {
    for (const auto& p : sums) p->leaf().mutable_grad().div_(dp.size());
  }
  // After all divisions: gradients that are views of one tensor have a common version.
  for (const auto& p : sums) record_mean(*p);
}

namespace {

/// Refuses an axis that lacks ranks with other parts of a parameter or with other parameters: each
/// group of ranks of the axis would silently compute another norm.
void check_has_all_parts(const Parameters& parameters, const Axis& over) {
  const std::vector<int> ranks = over.ranks();
  std::vector<Axis> seen;
  for (const auto& p : parameters) {
    for (const Axis& axis : {p->axis(), p->data_axis(), stages_of(*p)}) {
      if (axis.size() == 1 || std::ranges::find(seen, axis) != seen.end()) continue;
      seen.push_back(axis);
      const bool has_all = std::ranges::all_of(
          axis.ranks(), [&](int rank) { return std::ranges::find(ranks, rank) != ranks.end(); });
      CLEAVE_CHECK(has_all, Code::kUsage, "the norm is over the ", ranks.size(), " ranks of ",
                   over.name(), ", and ", p->name(), " or the parameters beside it are on the ",
                   axis.size(), " ranks of ", axis.name(),
                   " too; give an axis of all ranks (Mesh::flatten), or use clip_grad_norm");
    }
  }
}

}  // namespace

GradientNorm gradient_norm(const Parameters& parameters, const Axis& tp, double power) {
  check_has_all_parts(parameters, tp);
  for (const auto& p : parameters) {
    CLEAVE_CHECK(!p->copies(), Code::kUsage, p->name(),
                 " belongs to an expert, and --ep gives other ranks other experts; use "
                 "gradient_norm(parameters, tp, ep)");
    check_complete(*p);
  }
  return norm_over(trained_of(parameters), {.tp = tp, .data = {}, .stages = {}}, power);
}

GradientNorm gradient_norm(const Parameters& parameters, const Axis& tp, const Axis& ep) {
  check_has_all_parts(parameters, tp);
  for (const auto& p : parameters) check_complete(*p);
  return norm_over(trained_of(parameters), {.tp = tp, .data = ep, .stages = {}}, 2);
}

double clip_factor(double norm, double max_norm) {
  const double factor = max_norm / (norm + 1e-6);
  return factor < 1 ? factor : 1;
}

void clip_gradients(const Parameters& parameters, double norm, double max_norm) {
  for (const auto& p : parameters) check_complete(*p);
  const double factor = clip_factor(norm, max_norm);
  if (factor == 1) return;
  const at::NoGradGuard no_grad;
  std::vector<Tensor> grads;
  for (const auto& p : parameters) {
    const Tensor& leaf = p->leaf();  // undefined on ranks of other pipeline stages
    if (leaf.defined() && leaf.grad().defined()) grads.push_back(leaf.mutable_grad());
  }
  if (!grads.empty()) at::_foreach_mul_(grads, factor);
  for (const auto& p : parameters) record_scaled(*p);
}

GradientNorm clip_grad_norm_of(const Parameters& parameters, double max_norm, double norm_type,
                               bool error_if_nonfinite) {
  CLEAVE_CHECK(max_norm >= 0, Code::kUsage, "max_norm=", max_norm, " must not be negative");
  NormAxes axes;
  Parameters once;
  std::set<const Parameter*> seen;
  for (const auto& p : parameters) {
    if (!seen.insert(p.get()).second) continue;
    CLEAVE_CHECK(!p->copies(), Code::kUsage, p->name(),
                 " belongs to an expert, and --ep gives other ranks other experts; use "
                 "gradient_norm(parameters, tp, ep) and clip_gradients");
    once.push_back(p);
    take_axis(axes.tp, p->axis(), *p);
    take_axis(axes.data, p->data_axis(), *p);
    if (!p->leaf().defined()) continue;
    check_complete(*p);
    take_axis(axes.stages, stages_of(*p), *p);
  }
  const bool has_memory =
      std::ranges::any_of(once, [](const auto& p) { return p->leaf().defined(); });
  CLEAVE_CHECK(
      has_memory, Code::kUsage,
      "none of the parameters has memory on this rank, so it is not known with which ranks "
      "they have a norm; give all parameters of the model, or of this pipeline stage, the "
      "frozen ones too");
  GradientNorm norm = norm_over(once, axes, norm_type);
  if (std::isfinite(norm.value)) {
    clip_gradients(once, norm.value, max_norm);
    return norm;
  }
  CLEAVE_CHECK(!error_if_nonfinite, Code::kNumerics, "the gradient of ", norm.not_finite,
               " is not finite, so the norm is ", norm.value, "; nothing was scaled");
  return norm;
}

}  // namespace cleave::inline parallel
