#include "cleave/parallel/zero1.h"

#include <utility>

namespace cleave::inline parallel {

// The leaves are sharded before the optimizer makes moments of their sizes.
Zero1Optimizer::Zero1Optimizer(const Parameters& parameters, const Axis& dp,
                               const OptimizerOptions& options, const Zero1Options& zero1)
    : Zero1Optimizer(
          std::make_shared<GradientSync>(parameters, dp,
                                         GradientSyncOptions{.sharding = DataSharding::kZero1,
                                                             .precision = zero1.precision,
                                                             .pipeline = zero1.pipeline,
                                                             .bucket_bytes = zero1.bucket_bytes}),
          options, parameters) {}

Zero1Optimizer::Zero1Optimizer(std::shared_ptr<GradientSync> gradients,
                               const OptimizerOptions& options, const Parameters& model)
    : Optimizer(gradients->parameters(), options, model), gradients_(std::move(gradients)) {}

void Zero1Optimizer::step(double lr, double gradient_scale) {
  CLEAVE_CHECK(
      !gradients_->has_incomplete_gradients(), Code::kUsage, "step ", num_steps() + 1,
      " of ZeRO-1 before the gradients were summed; call reduce_gradients() after the last "
      "backward, then clip");
  Optimizer::step(lr, gradient_scale);
  gather_weights();
}

}  // namespace cleave::inline parallel
