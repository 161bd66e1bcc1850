#include "cleave/nn/label_loss.h"

#include <limits>

#include <ATen/ATen.h>

#include "cleave/nn/cross_entropy.h"

namespace cleave::inline nn {

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
  const at::ScalarType type = scores.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  // Selected before the difference is squared: the gradient of a sequence without a label is 0.
  const Tensor missing = has_label(labels).bitwise_not();
  const Tensor errors = (scores.to(type) - labels.to(type)).masked_fill(missing, 0);
  const int64_t divisor = count > 0 ? count : has_label(labels).sum().item<int64_t>();
  return whole.with(errors.square().sum() / static_cast<double>(divisor), Replicate{});
}

DTensor label_loss(const DTensor& logits, const Tensor& labels, int64_t count) {
  return labels.is_floating_point() ? squared_error(logits, labels, count)
                                    : cross_entropy(logits, labels, {.valid_tokens = count});
}

}  // namespace cleave::inline nn
