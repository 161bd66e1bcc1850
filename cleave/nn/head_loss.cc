#include "cleave/nn/head_loss.h"

#include <algorithm>
#include <functional>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "cleave/base/error.h"
#include "cleave/kernels/cpu/fused.h"
#include "cleave/nn/call_record.h"
#include "cleave/nn/cross_entropy.h"
#include "cleave/torch_internals/node.h"
#include "cleave/torch_internals/step_scope.h"

namespace cleave::inline nn {
namespace {

/// sum + more, in fp32 or wider; an undefined `sum` counts as zero.
Tensor added(const Tensor& sum, const Tensor& more) {
  if (!sum.defined()) return more;
  const bool is_wide = sum.scalar_type() == at::kDouble || more.scalar_type() == at::kFloat;
  return is_wide ? sum.add_(more) : add_in_fp32(sum, more);
}

/// The weights of a layer that need a gradient, as forward reads them.
variable_list trained_weights(Layer& layer) {
  if (!at::GradMode::is_enabled()) return {};
  const CallRecord apart;  // the calls of the head record the layouts in which it reads them
  variable_list out;
  for (const auto& p : layer.parameters()) {
    if (needs_grad(p->use())) out.push_back(p->use());
  }
  return out;
}

/// A factor of the losses of single tokens, whose gradients have no loss scale yet: in fp16 the
/// smallest probability is 6e-8. The logits' gradients stay below it, far from fp16's largest
/// number.
double gradient_scale(at::ScalarType type) {
  return type == at::kHalf ? 256 : 1;
}

/// Sums over the parts computed so far. Gradients are those of `inputs`.
struct Sums {
  Tensor loss;
  variable_list gradients;  // the first is of x, [N, D]; undefined where there is none
};

class LossInParts : public Wrap {
 public:
  LossInParts(Linear& head, const HeadLossOptions& options) : head_(head), options_(options) {}

  DTensor call(Layer& layer, const DTensor& x, const Context& context, const Next& next) override {
    const auto loss = context.head_loss;
    CLEAVE_CHECK(!loss || loss->labels.defined(), Code::kUsage,
                 "HeadLoss::labels is empty; give it the labels [B, T] of the batch");
    const bool is_wanted = loss && !(loss->is_per_token && is_trained());
    const int64_t num_parts = is_wanted ? num_parts_of(x, loss->labels.numel()) : 1;
    if (num_parts == 1) return next(x, context);
    const LayerScope scope(layer.path());
    const DTensor in = head_.shared_input(x);
    const auto sizes = in.local().sizes();
    // If not, a plan gives the head a part of the sequences, or the labels are not [B, T].
    const bool is_whole = sizes.size() == 3 && sizes.slice(0, 2) == loss->labels.sizes();
    if (!is_whole) return next(x, context);
    Context own = context;
    own.deferred = nullptr;  // the gradients of the weights are computed below
    if (loss->is_per_token) return token_losses(in, own, num_parts, next);
    const variable_list weights = trained_weights(head_);
    Sums sums = sums_of(in, own, num_parts, weights, next);
    if (!weights.empty() || needs_grad(in.local())) {
      variable_list inputs{in.local()};
      inputs.insert(inputs.end(), weights.begin(), weights.end());
      // Backward gives up its reference to the gradients: libtorch copies a gradient that has
      // another owner.
      const auto gradients = std::make_shared<variable_list>(std::move(sums.gradients));
      connect("head_loss", inputs, {sums.loss},
              [gradients, shape = sizes.vec()](variable_list&& upstream) {
                return scaled(std::move(*gradients), upstream[0], shape);
              });
    }
    return in.with(sums.loss, Replicate{});
  }

 private:
  /// Whether a weight gets a gradient.
  [[nodiscard]] bool is_trained() const {
    return at::GradMode::is_enabled() && !trained_of(head_.parameters()).empty();
  }

  /// The same on all ranks: a rank's part of the classes can be smaller than another one's.
  [[nodiscard]] int64_t num_parts_of(const DTensor& x, int64_t num_tokens) const {
    if (head_.has_lora()) return 1;
    const auto& shape = head_.weight()->shape();
    const int64_t classes = shape[head_.is_transposed() ? 1 : 0];
    const auto width = static_cast<double>(shape[head_.is_transposed() ? 0 : 1]);
    const bool is_trained = at::GradMode::is_enabled() && !head_.weight()->is_frozen();
    if (is_trained && static_cast<double>(num_tokens) < options_.least_tokens * width) return 1;
    const int64_t ranks = head_.is_column_split() ? head_.weight()->axis().size() : 1;
    const int64_t bytes = num_tokens * ((classes + ranks - 1) / ranks) * x.local().element_size();
    const int64_t most = options_.most_bytes;
    return std::max<int64_t>(1, std::min((bytes + most - 1) / most, num_tokens));
  }

  /// Calls `visit(begin, count)` with the parts of `num_tokens`.
  static void for_parts(int64_t num_tokens, int64_t num_parts,
                        const std::function<void(int64_t, int64_t)>& visit) {
    const int64_t most = (num_tokens + num_parts - 1) / num_parts;
    for (int64_t begin = 0; begin < num_tokens; begin += most) {
      visit(begin, std::min(most, num_tokens - begin));
    }
  }

  /// The weights are frozen: a row of the input has an effect on the loss of its token only, so its
  /// gradient is that of this loss times the upstream gradient.
  static DTensor token_losses(const DTensor& in, const Context& context, int64_t num_parts,
                              const Next& next) {
    const Tensor& labels = context.head_loss->labels;
    const Tensor rows = in.local().detach().flatten(0, 1);
    const bool x_grad = needs_grad(in.local());
    const double scale = gradient_scale(rows.scalar_type());
    std::vector<Tensor> losses;
    Tensor gradient = x_grad ? at::empty_like(rows) : Tensor();
    for_parts(rows.size(0), num_parts, [&](int64_t begin, int64_t count) {
      const Tensor part = rows.narrow(0, begin, count).detach().requires_grad_(x_grad);
      const Tensor loss =
          cross_entropy(next(in.with(part), context), labels.flatten().narrow(0, begin, count),
                        {.reduction = CrossEntropyOptions::Reduction::kNone})
              .local();
      losses.push_back(loss.detach());
      if (!x_grad) return;
      gradient.narrow(0, begin, count)
          .copy_(torch::autograd::grad({loss.sum() * scale}, {part})[0]);
    });
    // A copy: what is connected must be no view.
    const Tensor all = at::cat(losses).view(labels.sizes()).clone();
    if (x_grad) {
      connect("head_loss", {in.local()}, {all}, [gradient, scale](variable_list&& upstream) {
        const Tensor own = gradient * (upstream[0] / scale).reshape({-1, 1});
        auto sizes = upstream[0].sizes().vec();
        sizes.push_back(gradient.size(1));
        return variable_list{own.to(gradient.scalar_type()).view(sizes)};
      });
    }
    return in.with(all, Replicate{});
  }

  static Sums sums_of(const DTensor& in, const Context& context, int64_t num_parts,
                      const variable_list& weights, const Next& next) {
    const HeadLoss& wanted = *context.head_loss;
    const Tensor labels = wanted.labels.flatten();
    const int64_t divisor = wanted.count > 0 ? wanted.count : labels.ne(-100).sum().item<int64_t>();
    const Tensor rows = in.local().detach().flatten(0, 1);
    const bool x_grad = needs_grad(in.local());
    Sums sums;
    sums.gradients.resize(1 + weights.size());
    if (x_grad) sums.gradients[0] = at::empty_like(rows);
    for_parts(rows.size(0), num_parts, [&](int64_t begin, int64_t count) {
      const Tensor part = rows.narrow(0, begin, count).detach().requires_grad_(x_grad);
      const DTensor logits = next(in.with(part), context);
      const Tensor loss =
          cross_entropy(logits, labels.narrow(0, begin, count), {.valid_tokens = divisor}).local() *
          wanted.scale;
      sums.loss = added(sums.loss, loss.detach());
      if (!needs_grad(loss)) return;
      variable_list inputs = weights;
      if (x_grad) inputs.push_back(part);
      variable_list gradients = torch::autograd::grad({loss}, inputs);
      const at::NoGradGuard no_grad;
      if (x_grad) sums.gradients[0].narrow(0, begin, count).copy_(gradients.back());
      for (size_t i = 0; i < weights.size(); ++i) {
        sums.gradients[i + 1] = added(sums.gradients[i + 1], gradients[i]);
      }
    });
    for (size_t i = 0; i < weights.size(); ++i) {
      Tensor& gradient = sums.gradients[i + 1];
      if (gradient.defined()) gradient = gradient.to(weights[i].scalar_type());
    }
    return sums;
  }

  /// The gradients times `upstream`, a number that is 1 unless the loss is used in another one.
  static variable_list scaled(variable_list out, const Tensor& upstream,
                              const std::vector<int64_t>& shape) {
    TORCH_CHECK(!out.empty(), "head_loss: backward ran a second time over a freed graph");
    const bool is_one = upstream.is_meta() || (upstream.is_cpu() && upstream.item<double>() == 1);
    for (Tensor& gradient : out) {
      // Not in the gradient's type: 1/3 in bf16 is 0.2% too large, a loss scale in fp16 infinite.
      if (gradient.defined() && !is_one) gradient = gradient * upstream;
    }
    if (out[0].defined()) out[0] = out[0].view(shape);
    return out;
  }

  Linear& head_;
  HeadLossOptions options_;
};

}  // namespace

void compute_loss_in_parts(Linear& head, const HeadLossOptions& options) {
  head.attach(std::make_unique<LossInParts>(head, options));
}

}  // namespace cleave::inline nn
