#include "cleave/train/batch_loader.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "cleave/nn/label_loss.h"

namespace cleave::inline train {

Range BatchLoader::own_range(int64_t num_samples) const {
  const int64_t dp = setup_.layout.dp;
  const int64_t r = dp_.rank();
  return {num_samples * r / dp, num_samples * (r + 1) / dp};
}

SampleOrder BatchLoader::order_of(const Dataset& data) const {
  SampleOrder order = setup_.order;
  order.num_samples = data.size();
  const bool trains = &data == setup_.data.get();
  order.shuffle = order.shuffle && trains;
  if (!trains) order.mix.reset();
  return order;
}

std::vector<Batch> BatchLoader::of_step(int64_t step) const {
  return micro_batches(*setup_.data, step, setup_.order.batch_size);
}

std::vector<Batch> BatchLoader::micro_batches(const Dataset& data, int64_t step,
                                              int64_t num_samples) const {
  const auto [begin, end] = own_range(num_samples);
  const SampleOrder order = order_of(data);
  const bool trains = &data == setup_.data.get();
  const Range rows{begin, std::max(end, begin + 1)};
  Batch batch = trains ? setup_.batches.make(data, order, step, rows.begin, rows.end)
                       : setup_.eval_batches.make_for_eval(data, order, step, rows.begin, rows.end);
  if (reference_) {
    const Tensor& known = trains ? reference_->data : reference_->eval_data;
    batch.reference = rows_of_batch(known, order, step, rows);
  }
  if (begin == end) batch.labels = no_labels_like(batch.labels);
  const int64_t most = (num_samples + setup_.layout.dp - 1) / setup_.layout.dp;
  const int64_t size = setup_.micro_batch_size;
  return micro_batches_of(batch, size, (most + size - 1) / size);
}

void check_same_batch(std::span<const Batch> batches, const Axis& same_batch) {
  if (same_batch.size() == 1) return;
  const Tensor mine = at::scalar_tensor(batches.front().hash(), at::kLong).view({1});
  const std::vector<int64_t> one_each(static_cast<size_t>(same_batch.size()), 1);
  const Tensor all = same_batch.all_gather(mine, 0, one_each, "hash of the first batch");
  for (int64_t r = 0; r < same_batch.size(); ++r) {
    CLEAVE_CHECK(
        all[r].item<int64_t>() == all[0].item<int64_t>(), Code::kDesync, "ranks 0 and ", r,
        " of those with the same dp coordinate read different first batches; check that all hosts "
        "have the same data files");
  }
}

}  // namespace cleave::inline train
