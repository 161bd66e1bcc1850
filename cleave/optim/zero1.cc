#include "cleave/optim/zero1.h"

namespace cleave {

// The leaves are sharded before the optimizer makes moments of their sizes.
Zero1Optimizer::Zero1Optimizer(const Parameters& parameters, const Axis& dp,
                               const OptimizerOptions& options, const Zero1Options& zero1)
    : Zero1Optimizer(parameters,
                     std::make_shared<DataParallel>(
                         parameters, dp,
                         DataParallelOptions{.precision = zero1.precision,
                                             .shard_states = true,
                                             .separate_buckets = zero1.separate_buckets,
                                             .bucket_bytes = zero1.bucket_bytes}),
                     options) {}

Zero1Optimizer::Zero1Optimizer(const Parameters& parameters,
                               std::shared_ptr<DataParallel> data_parallel,
                               const OptimizerOptions& options)
    : Optimizer(parameters, options), data_parallel_(std::move(data_parallel)) {}

void Zero1Optimizer::step(double lr, double gradient_scale) {
  CLEAVE_CHECK(
      !data_parallel_->has_unfinished_gradients(), Code::kUsage, "step ", num_steps() + 1,
      " of ZeRO-1 before the gradients were summed; call reduce_gradients() after the last "
      "backward, then clip");
  Optimizer::step(lr, gradient_scale);
  gather_weights();
}

void Zero1Optimizer::zero_grad() {
  Optimizer::zero_grad();
  data_parallel_->drop_gradients();
}

}  // namespace cleave
