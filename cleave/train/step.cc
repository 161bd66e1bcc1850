#include "cleave/train/step.h"

#include <algorithm>
#include <cmath>

#include <ATen/ATen.h>

#include "cleave/nn/label_loss.h"

namespace cleave::inline train {

Context context_of(const Batch& batch, Context shared) {
  if (batch.attention_mask.defined()) shared.key_mask = batch.attention_mask;
  if (batch.token_types.defined()) shared.token_types = batch.token_types;
  if (batch.first_row != 0) shared.first_sample = batch.first_row;
  if (batch.positions.defined()) {
    shared.positions = batch.positions;
    // The distance to the beginning of a token's text is its position.
    const Tensor places = at::arange(batch.ids.size(1), at::kLong);
    shared.first_key = (places - batch.positions).to(batch.ids.device(), /*non_blocking=*/true);
  }
  return shared;
}

int64_t TokenSums::length() const {
  return tokens == 0 ? 0 : (lengths + tokens / 2) / tokens;
}

TokenSums token_sums(std::span<const Batch> batches, int64_t num_rows) {
  TokenSums sums;
  for (const Batch& batch : batches) {
    const int64_t rows = std::min(num_rows, batch.ids.size(0));
    num_rows -= rows;
    const auto first_rows = [rows](const Tensor& t) { return t.narrow(0, 0, rows); };
    const Tensor is_token = batch.attention_mask.defined()
                                ? first_rows(batch.attention_mask).to(at::kLong)
                                : at::ones({rows, batch.ids.size(1)}, at::kLong);
    const Tensor counts = is_token.sum(1);
    sums.tokens += counts.sum().item<int64_t>();
    // The tokens of a text of T have the positions 0 to T - 1, of which 2 p + 1 sums up to T^2.
    const Tensor lengths = batch.positions.defined()
                               ? (2 * first_rows(batch.positions) + 1) * is_token
                               : counts.square();
    sums.lengths += lengths.sum().item<int64_t>();
  }
  return sums;
}

std::vector<Batch> micro_batches_of(const Batch& batch, int64_t size, int64_t count) {
  std::vector<Batch> out;
  const int64_t rows = size * batch.rows_per_sample;
  const int64_t num_rows = batch.ids.size(0);
  for (int64_t begin = 0; begin < num_rows; begin += rows) {
    out.push_back(batch.rows(begin, std::min(begin + rows, num_rows)));
  }
  while (std::ssize(out) < count) {
    out.push_back(batch.rows(0, batch.rows_per_sample));
    out.back().labels = no_labels_like(out.back().labels);
  }
  return out;
}

EvalSum& EvalSum::operator+=(const EvalSum& other) {
  loss_sum += other.loss_sum;
  num_labels += other.num_labels;
  num_right += other.num_right;
  return *this;
}

Tensor EvalSum::tensor() const {
  return at::tensor({loss_sum, static_cast<double>(num_labels), static_cast<double>(num_right)},
                    at::kDouble);
}

EvalSum EvalSum::from(const Tensor& sums) {
  return {.loss_sum = sums[0].item<double>(),
          .num_labels = static_cast<int64_t>(sums[1].item<double>()),
          .num_right = static_cast<int64_t>(sums[2].item<double>())};
}

double EvalSum::loss() const {
  return loss_sum / static_cast<double>(num_labels);
}

double EvalSum::perplexity() const {
  return std::exp(loss());
}

double EvalSum::accuracy() const {
  return static_cast<double>(num_right) / static_cast<double>(num_labels);
}

EvalSum eval_of(const DTensor& result, const Tensor& targets, Task task) {
  const at::NoGradGuard no_grad;
  const bool is_loss = result.dim() == 0;
  const DTensor loss = is_loss ? result : label_loss(result, targets, /*count=*/1);  // the sum
  // Read together: on a device, each read waits for it.
  const Tensor sums =
      at::stack({loss.local().to(at::kDouble), has_label(targets).sum().to(at::kDouble)})
          .to(at::kCPU);
  const double* values = sums.const_data_ptr<double>();
  return {.loss_sum = values[0],
          .num_labels = static_cast<int64_t>(values[1]),
          .num_right = task == Task::kClassify ? num_right(result, targets) : 0};
}

}  // namespace cleave::inline train
