#pragma once
#include <memory>

#include "cleave/optim/optimizer.h"
#include "cleave/parallel/data_parallel.h"

namespace cleave {

/// How Zero1Optimizer treats weights and gradients; DataParallelOptions without what it decides.
struct Zero1Options {
  ShardPrecision precision{};
  Parameters alone{};
  int64_t bucket_bytes = DataParallelOptions{}.bucket_bytes;
};

/// ZeRO-1: an optimizer whose masters and moments are cut over data-parallel ranks, while the
/// weights that forward reads stay whole on each.
///
///   Zero1Optimizer optimizer(model.parameters(), mesh["dp"], {.weight_decay = 0.1});
///   materialize(model);  // or load_model: of leaves, which are parts now
///   optimizer.gather_weights();
///   every step:
///     optimizer.zero_grad();
///     ... backward of each micro-batch ...
///     optimizer.reduce_gradients();
///     clip_grad_norm(model.parameters(), 1.0);  // on the parts, over all ranks
///     optimizer.step(lr);
///
/// Parameters are cut exactly, as one flat run of elements a bucket, on top of any tensor-parallel
/// cut; a rank holds numel / dp masters and moments. States are saved and loaded as any
/// Optimizer's, on any layout. With bf16 weights a rank holds, for each of its numel elements, 2
/// bytes of weight and 4 of gradient, which adds up over micro-batches in fp32, and 12 / dp of
/// master and moments. Source: Rajbhandari and others, arXiv:1910.02054, P_os.
class Zero1Optimizer : public Optimizer {
 public:
  /// Cuts the leaves, with or without memory; where they have it, call gather_weights() next.
  Zero1Optimizer(const Parameters& parameters, const Axis& dp, const OptimizerOptions& options,
                 const Zero1Options& zero1 = {});

  /// What forward reads, from the leaves; after they were filled. Collective.
  void gather_weights() { data_parallel_->leaves_changed(); }
  /// After a step's last backward: sums of the whole gradients go to the leaves' parts. A second
  /// call in a step changes nothing. Collective.
  void reduce_gradients() { data_parallel_->finish_gradients(); }
  /// Updates the parts and gathers the weights. Throws Error(kUsage) before reduce_gradients().
  /// Collective.
  void step(double lr, double gradient_scale = 1) override;
  void zero_grad() override;

  /// For sum_during_backward().
  [[nodiscard]] const std::shared_ptr<DataParallel>& data_parallel() const {
    return data_parallel_;
  }

 private:
  Zero1Optimizer(const Parameters& parameters, std::shared_ptr<DataParallel> data_parallel,
                 const OptimizerOptions& options);
  std::shared_ptr<DataParallel> data_parallel_;
};

}  // namespace cleave
