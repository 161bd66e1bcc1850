#include "cleave/nn/cross_entropy.h"

#include <limits>
#include <numeric>

#include <ATen/ATen.h>

#include "cleave/layout/node.h"

namespace cleave {
namespace {

using Reduction = CrossEntropyOptions::Reduction;

/// Shape letters: N labels, W classes on this rank of V in all.
struct Classes {
  Axis axis;      // size 1 where the logits are whole
  Range held;     // this rank's classes
  int64_t whole;  // V
};

Classes classes_of(const DTensor& logits) {
  const Placement& p = logits.placement();
  const int64_t whole = logits.size(-1);
  if (!logits.is_split() || p.is_replicate()) return {Axis(), {0, whole}, whole};
  CLEAVE_CHECK(p.is_shard(logits.dim() - 1) && p.split()->in_order(), Code::kShape,
               "the loss takes logits as Replicate or Shard(-1); it got ", p.describe(),
               " made by ", logits.maker());
  const int rank = logits.axis().rank();
  const auto& widths = p.split()->widths();
  const int64_t begin = std::accumulate(widths.begin(), widths.begin() + rank, int64_t{0});
  return {logits.axis(), {begin, begin + p.split()->width(rank)}, whole};
}

void check_labels(const Tensor& labels, const Tensor& valid, int64_t num_classes) {
  if (labels.is_meta()) return;  // a dry run has shapes alone
  const Tensor wrong = valid.bitwise_and(labels.lt(0).bitwise_or_(labels.ge(num_classes)));
  if (!wrong.any().item<bool>()) return;
  const auto first = labels.masked_select(wrong)[0].item<int64_t>();
  throw Error(Code::kShape, str("label ", first, " is outside [0, ", num_classes,
                                "); use the ignore index for places without a label"));
}

/// What forward leaves for backward: d loss_n / d logit_nj = probability - target weights, where
/// valid.
struct Pass {
  Tensor loss_N;
  Tensor gradient_NW;
};

Pass forward_pass(const Tensor& logits_NW, const Tensor& labels_N, const Classes& classes,
                  const CrossEntropyOptions& o) {
  const std::string site = "cross_entropy";
  const bool double_precision = logits_NW.scalar_type() == at::kDouble;
  Tensor z = logits_NW.to(double_precision ? at::kDouble : at::kFloat);
  const int64_t width = z.size(1);
  const Tensor valid = labels_N.ne(o.ignore_index);
  check_labels(labels_N, valid, classes.whole);
  Tensor top = width > 0
                   ? z.amax(-1)
                   : at::full({z.size(0)}, -std::numeric_limits<float>::infinity(), z.options());
  top = classes.axis.all_reduce(top, site, ReduceOp::kMax);
  z = z - top.unsqueeze(-1);

  const Tensor here = labels_N.ge(classes.held.begin)
                          .bitwise_and_(labels_N.lt(classes.held.end))
                          .bitwise_and_(valid);
  Tensor place, target;
  if (width > 0) {
    place = (labels_N - classes.held.begin).clamp(0, width - 1).unsqueeze(-1);
    target = z.gather(-1, place).squeeze(-1).masked_fill_(here.bitwise_not(), 0);
  } else {
    target = at::zeros_like(top);
  }
  // Smoothing needs the mean log-probability over all classes of the whole vocabulary.
  const auto num_classes = static_cast<double>(classes.whole);
  const Tensor sum_of_all = o.label_smoothing > 0 ? z.sum(-1) : at::zeros_like(top);
  Tensor p = z.exp_();
  const Tensor sums = classes.axis.all_reduce(at::stack({p.sum(-1), target, sum_of_all}), site);
  const Tensor log_sum = sums[0].log();
  const double s = o.smoothing == CrossEntropyOptions::Smoothing::kNemo
                       ? o.label_smoothing * num_classes / (num_classes - 1)
                       : o.label_smoothing;
  const Tensor mean_log = sums[2] / num_classes - log_sum;
  const Tensor loss = (log_sum - sums[1]) * (1 - s) - mean_log * s;

  p.div_(sums[0].unsqueeze(-1));
  if (s > 0) p.sub_(s / num_classes);
  if (width > 0) p.scatter_add_(-1, place, here.to(p.scalar_type()).mul_(-(1 - s)).unsqueeze(-1));
  // Filled, not multiplied: what is not counted may be infinite.
  const Tensor ignored = valid.bitwise_not();
  p.masked_fill_(ignored.unsqueeze(-1), 0);
  return {.loss_N = loss.masked_fill(ignored, 0), .gradient_NW = p};
}

}  // namespace

DTensor cross_entropy(const DTensor& logits, const Tensor& labels, const CrossEntropyOptions& o) {
  CLEAVE_CHECK(o.label_smoothing >= 0 && o.label_smoothing <= 1, Code::kUsage,
               "label_smoothing=", o.label_smoothing, " must be in [0, 1]");
  CLEAVE_CHECK(
      labels.sizes() == logits.local().sizes().slice(0, static_cast<size_t>(logits.dim()) - 1),
      Code::kShape, "labels have shape ", labels.sizes(), "; logits are ", logits.local().sizes());
  const Classes classes = classes_of(logits);
  Pass pass;
  Tensor scale;  // what each token's loss counts
  Tensor result;
  {
    const at::NoGradGuard no_grad;
    const Tensor flat = labels.flatten();
    pass = forward_pass(logits.local().detach().flatten(0, -2), flat, classes, o);
    if (o.reduction == Reduction::kNone) {
      result = pass.loss_N.view(labels.sizes());
    } else {
      const int64_t count = o.reduction == Reduction::kSum ? 1
                            : o.valid_tokens > 0           ? o.valid_tokens
                                                 : flat.ne(o.ignore_index).sum().item<int64_t>();
      scale = at::scalar_tensor(1.0 / static_cast<double>(count), pass.loss_N.options());
      result = pass.loss_N.sum() / static_cast<double>(count);
    }
  }
  if (needs_grad(logits.local())) {
    connect("cross_entropy", {logits.local()}, {result},
            [gradient = pass.gradient_NW, scale, shape = logits.local().sizes().vec(),
             type = logits.local().scalar_type()](variable_list&& grads) -> variable_list {
              const Tensor upstream =
                  scale.defined() ? (grads[0] * scale).view({1, 1}) : grads[0].reshape({-1, 1});
              return {(gradient * upstream).to(type).view(shape)};
            });
  }
  return logits.with(result, Replicate{});
}

Tensor next_token_labels(const Tensor& labels) {
  Tensor out = at::full_like(labels, -100);
  const int64_t places = labels.size(1) - 1;
  if (places > 0) out.narrow(1, 0, places).copy_(labels.narrow(1, 1, places));
  return out;
}

}  // namespace cleave
