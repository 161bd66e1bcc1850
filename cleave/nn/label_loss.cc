#include "cleave/nn/label_loss.h"

#include <limits>

#include <ATen/ATen.h>

#include "cleave/nn/cross_entropy.h"

namespace cleave::inline nn {
namespace {

/// The type of a loss: at least fp32, as that of narrow logits in transformers.
at::ScalarType loss_type(const Tensor& logits) {
  return logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

/// -ln(sigmoid(x)). libtorch's log_sigmoid does not run on the meta device, which forecasts need.
Tensor minus_log_sigmoid(const Tensor& x) {
  constexpr double kLargest = 40;  // beyond it ln(1 + exp(-x)) is -x in fp64, too
  return at::softplus(x.neg(), /*beta=*/1, kLargest);
}

int64_t divisor_of(const Tensor& labels, int64_t count) {
  return count > 0 ? count : has_label(labels).sum().item<int64_t>();
}

}  // namespace

Tensor has_label(const Tensor& labels) {
  return labels.is_floating_point() ? labels.eq(labels) : labels.ne(-100);
}

Tensor no_labels_like(const Tensor& labels) {
  if (!labels.is_floating_point()) return at::full_like(labels, -100);
  return at::full_like(labels, std::numeric_limits<double>::quiet_NaN());
}

DTensor squared_error(const DTensor& logits, const Tensor& labels, int64_t count) {
  CLEAVE_CHECK(logits.dim() == 2 && logits.size(1) == 1 && labels.dim() == 1 &&
                   labels.size(0) == logits.size(0),
               Code::kShape, "a regression has one number per sequence; logits are ",
               logits.local().sizes(), " and labels ", labels.sizes());
  const DTensor whole = logits.redistribute(Replicate{});
  const Tensor scores = whole.local().squeeze(1);
  const at::ScalarType type = loss_type(scores);
  // Selected before the difference is squared: the gradient of a sequence without a label is 0.
  const Tensor missing = has_label(labels).bitwise_not();
  const Tensor errors = (scores.to(type) - labels.to(type)).masked_fill(missing, 0);
  const auto divisor = static_cast<double>(divisor_of(labels, count));
  return whole.with(errors.square().sum() / divisor, Replicate{});
}

DTensor binary_cross_entropy(const DTensor& logits, const Tensor& labels, int64_t count) {
  CLEAVE_CHECK(logits.dim() == 2 && labels.dim() == 2 && labels.size(0) == logits.size(0) &&
                   labels.size(1) == logits.size(1),
               Code::kShape, "each class of a sequence has a label; logits are ",
               logits.local().sizes(), " and labels ", labels.sizes());
  const DTensor whole = logits.redistribute(Replicate{});
  const at::ScalarType type = loss_type(whole.local());
  const Tensor missing = has_label(labels).bitwise_not();
  const Tensor x = whole.local().to(type), y = labels.to(type).masked_fill(missing, 0);
  const Tensor losses = y * minus_log_sigmoid(x) + (1 - y) * minus_log_sigmoid(x.neg());
  const auto divisor = static_cast<double>(divisor_of(labels, count));
  return whole.with(losses.masked_fill(missing, 0).sum() / divisor, Replicate{});
}

DTensor label_loss(const DTensor& logits, const Tensor& labels, int64_t count) {
  if (!labels.is_floating_point()) return cross_entropy(logits, labels, {.valid_tokens = count});
  return labels.dim() == 2 ? binary_cross_entropy(logits, labels, count)
                           : squared_error(logits, labels, count);
}

}  // namespace cleave::inline nn
