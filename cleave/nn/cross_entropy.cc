#include "cleave/nn/cross_entropy.h"

#include <functional>
#include <limits>
#include <numeric>

#include <ATen/ATen.h>

#include "cleave/kernels/cpu/fused.h"
#include "cleave/runtime/kernel_switches.h"
#include "cleave/torch_internals/node.h"

namespace cleave::inline nn {
namespace {

using Reduction = CrossEntropyOptions::Reduction;

/// Shape letters: N labels, W classes on this rank of V in all.
struct Classes {
  Axis axis;          // size 1 where the logits are whole
  Range held;         // this rank's classes
  int64_t whole = 0;  // V
};

Classes classes_of(const DTensor& logits) {
  const Placement& p = logits.placement();
  const int64_t whole = logits.size(-1);
  if (!logits.is_split() || p.is_replicate()) return {Axis(), {0, whole}, whole};
  CLEAVE_CHECK(p.is_shard(logits.dim() - 1) && p.split()->in_order(), Code::kShape,
               "the loss takes logits as Replicate or Shard(-1); it got ", p.describe(),
               " made by ", logits.maker(),
               "; give that module the `output` Shard(-1) in the plan");
  const int rank = logits.axis().rank();
  const auto& widths = p.split()->widths();
  const int64_t begin = std::accumulate(widths.begin(), widths.begin() + rank, int64_t{0});
  return {logits.axis(), {begin, begin + p.split()->width(rank)}, whole};
}

/// Which labels are outside [0, num_classes) and not ignored. On the CPU, throws if there are any.
/// On a device the host would have to wait to know that.
Tensor wrong_labels(const Tensor& labels, const Tensor& valid, int64_t num_classes) {
  if (labels.is_meta()) return {};  // dry run: no values
  Tensor wrong = valid.bitwise_and(labels.lt(0).bitwise_or_(labels.ge(num_classes)));
  if (!labels.is_cpu() || !wrong.any().item<bool>()) return wrong;
  const auto first = labels.masked_select(wrong)[0].item<int64_t>();
  throw Error(Code::kShape, str("label ", first, " is outside [0, ", num_classes,
                                "); use ignore_index for positions without a label"));
}

/// Result of forward: each label's loss, and the backward function: d loss_n / d logit_nj times
/// upstream_n, [N, W].
struct Pass {
  Tensor loss_N;
  std::function<Tensor(const Tensor& upstream_N)> gradient;
};

/// The probability mass that label smoothing spreads over all classes.
double smoothing_of(const CrossEntropyOptions& o, int64_t num_classes) {
  if (o.smoothing != CrossEntropyOptions::Smoothing::kNemo) return o.label_smoothing;
  return o.label_smoothing * static_cast<double>(num_classes) /
         static_cast<double>(num_classes - 1);
}

/// For each label, whether this rank has its class, and the class's local column (else 0).
struct Targets {
  Tensor here_N, column_N;
};
Targets targets_of(const Tensor& labels_N, const Tensor& valid_N, const Classes& c) {
  const Tensor here =
      labels_N.ge(c.held.begin).bitwise_and_(labels_N.lt(c.held.end)).bitwise_and_(valid_N);
  return {.here_N = here,
          .column_N = (labels_N - c.held.begin).masked_fill_(here.bitwise_not(), 0)};
}

/// All-reduce of [3, N]: the sum of exponentials, the label's logit, and the sum of all logits (for
/// smoothing). The largest logit is subtracted from every logit beforehand.
Tensor summed(const Classes& classes, const Tensor& sums, const Tensor& label, const Tensor& all) {
  return classes.axis.all_reduce(at::stack({sums, label, all}), "cross_entropy");
}

Tensor loss_of(const Tensor& sums, const Tensor& valid_N, double s, int64_t num_classes) {
  const Tensor log_sum = sums[0].log();
  const Tensor mean_log = sums[2] / static_cast<double>(num_classes) - log_sum;
  const Tensor loss = (log_sum - sums[1]) * (1 - s) - mean_log * s;
  // masked_fill, not multiplication: ignored losses may be infinite.
  return loss.masked_fill(valid_N.bitwise_not(), 0);
}

/// With libtorch's operations; saves the probabilities for backward.
Pass plain_pass(const Tensor& logits_NW, const Tensor& labels_N, const Tensor& valid,
                const Classes& classes, double s) {
  const at::ScalarType type = logits_NW.scalar_type();
  Tensor z = logits_NW.to(type == at::kDouble ? at::kDouble : at::kFloat);
  const bool has_classes = z.size(1) > 0;
  Tensor top = has_classes
                   ? z.amax(-1)
                   : at::full({z.size(0)}, -std::numeric_limits<float>::infinity(), z.options());
  top = classes.axis.all_reduce(top, "cross_entropy", ReduceOp::kMax);
  z = z - top.unsqueeze(-1);
  const Targets t = targets_of(labels_N, valid, classes);
  const Tensor column = t.column_N.unsqueeze(-1);
  const Tensor label =
      has_classes ? z.gather(-1, column).squeeze(-1).masked_fill_(t.here_N.bitwise_not(), 0)
                  : at::zeros_like(top);
  const Tensor all = s > 0 ? z.sum(-1) : at::zeros_like(top);
  const Tensor p = z.exp_();
  const Tensor sums = summed(classes, p.sum(-1), label, all);
  p.div_(sums[0].unsqueeze(-1));
  if (s > 0) p.sub_(s / static_cast<double>(classes.whole));
  if (has_classes) {
    p.scatter_add_(-1, column, t.here_N.to(p.scalar_type()).mul_(-(1 - s)).unsqueeze(-1));
  }
  p.masked_fill_(valid.bitwise_not().unsqueeze(-1), 0);
  return {.loss_N = loss_of(sums, valid, s, classes.whole),
          .gradient = [p, type, ignored = valid.bitwise_not()](const Tensor& upstream) {
            // The mean of no losses has an infinite factor, and 0 times infinity is not a number.
            return (p * upstream.masked_fill(ignored, 0).unsqueeze(-1)).to(type);
          }};
}

/// With fused kernels: reads the logits once in forward and once in backward; saves the logits.
Pass fused_pass(const Tensor& logits_NW, const Tensor& labels_N, const Tensor& valid,
                const Classes& classes, double s) {
  const SoftmaxSums own = softmax_sums(logits_NW);
  const Tensor top = classes.axis.all_reduce(own.largest, "cross_entropy", ReduceOp::kMax);
  const Targets t = targets_of(labels_N, valid, classes);
  const Tensor label =
      (logits_NW.gather(-1, t.column_N.unsqueeze(-1)).squeeze(-1).to(at::kFloat) - top)
          .masked_fill_(t.here_N.bitwise_not(), 0);
  const auto width = static_cast<double>(logits_NW.size(1));
  const Tensor all =
      s > 0 ? logits_NW.sum(-1, false, at::kFloat) - top * width : at::zeros_like(top);
  const Tensor sums = summed(classes, own.sums * (own.largest - top).exp(), label, all);
  SoftmaxGradient arguments{.rows = {.largest = top, .sums = sums[0].contiguous()},
                            .factor = {},
                            .target = t.column_N.masked_fill(t.here_N.bitwise_not(), -1),
                            .spread = s / static_cast<double>(classes.whole),
                            .weight = 1 - s};
  return {.loss_N = loss_of(sums, valid, s, classes.whole),
          .gradient = [logits = SavedInput("cross_entropy", logits_NW), valid,
                       arguments](const Tensor& upstream) {
            SoftmaxGradient scaled = arguments;
            scaled.factor = upstream.expand_as(valid).masked_fill(valid.bitwise_not(), 0);
            return softmax_gradient(logits.get(), scaled);
          }};
}

}  // namespace

DTensor cross_entropy(const DTensor& logits, const Tensor& labels, const CrossEntropyOptions& o) {
  CLEAVE_CHECK(o.label_smoothing >= 0 && o.label_smoothing <= 1, Code::kUsage,
               "label_smoothing=", o.label_smoothing, " must be in [0, 1]");
  CLEAVE_CHECK(logits.dim() > 0, Code::kShape, "cross_entropy got one number, made by ",
               logits.maker(), ", instead of logits; with Context::head_loss the head may have ",
               "computed the loss already: then take its local()");
  const Classes classes = classes_of(logits);
  CLEAVE_CHECK(
      labels.sizes() == logits.local().sizes().slice(0, static_cast<size_t>(logits.dim()) - 1),
      Code::kShape, "labels have shape ", labels.sizes(), "; logits are ", logits.local().sizes());
  CLEAVE_CHECK(labels.scalar_type() == at::kLong, Code::kShape, "labels have type ",
               labels.scalar_type(), "; expected int64: labels.to(at::kLong)");
  Pass pass;
  Tensor scale;  // weight of each token's loss
  Tensor result;
  {
    const at::NoGradGuard no_grad;
    const Tensor flat = labels.flatten();
    const Tensor valid = flat.ne(o.ignore_index);
    const Tensor wrong = wrong_labels(flat, valid, classes.whole);
    const Tensor rows = logits.local().detach().flatten(0, -2);
    const double s = smoothing_of(o, classes.whole);
    const bool is_fused = is_on(Kernel::kLoss) && takes_fused({rows});
    pass = (is_fused ? fused_pass : plain_pass)(rows, flat, valid, classes, s);
    if (wrong.defined() && !flat.is_cpu()) {
      pass.loss_N.masked_fill_(wrong, std::numeric_limits<double>::quiet_NaN());
    }
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
            [gradient = pass.gradient, scale,
             shape = logits.local().sizes().vec()](variable_list&& grads) -> variable_list {
              const Tensor upstream =
                  scale.defined() ? (grads[0] * scale).view({1}) : grads[0].reshape({-1});
              return {gradient(upstream).view(shape)};
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

}  // namespace cleave::inline nn
