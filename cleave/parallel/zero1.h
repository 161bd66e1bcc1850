#pragma once
#include <memory>

#include "cleave/optim/optimizer.h"
#include "cleave/parallel/gradient_sync.h"

namespace cleave::inline parallel {

/// Options of Zero1Optimizer, as in GradientSyncOptions.
struct Zero1Options {
  ShardPrecision precision{};
  const PipelineModel* pipeline = nullptr;
  int64_t bucket_bytes = GradientSyncOptions{}.bucket_bytes;
};

/// ZeRO-1: an optimizer whose master weights and moments are sharded over data-parallel ranks,
/// while the weights that forward reads stay whole on each rank.
///
///   Zero1Optimizer optimizer(model.parameters(), mesh["dp"], {.weight_decay = 0.1});
///   materialize(model);  // or load_model: fills the leaves, which are shards now
///   optimizer.gather_weights();
///   every step:
///     optimizer.zero_grad();
///     ... backward of each micro-batch ...
///     optimizer.reduce_gradients();
///     clip_grad_norm(model.parameters(), 1.0);  // on the shards, over all ranks
///     optimizer.step(lr);
///
/// Each bucket of parameters is sharded as one flat buffer without padding, on top of tensor
/// parallelism; a rank holds numel / dp master weights and moments. States are saved and loaded as
/// any Optimizer's, on any layout. With bf16 weights a rank holds, for each of its numel elements,
/// 2 bytes of weight, 4 of gradient (summed over micro-batches in fp32), and 12 / dp of master
/// weight and moments. Source: Rajbhandari and others, arXiv:1910.02054, P_os.
class Zero1Optimizer : public Optimizer {
 public:
  /// Shards the leaves. If they have memory already, call gather_weights() next.
  Zero1Optimizer(const Parameters& parameters, const Axis& dp, const OptimizerOptions& options,
                 const Zero1Options& zero1 = {});
  /// For the parameters of a GradientSync with kZero1, which has sharded their leaves. `model`: see
  /// Optimizer; frozen parameters, which a GradientSync leaves out, are known by it too.
  Zero1Optimizer(std::shared_ptr<GradientSync> gradients, const OptimizerOptions& options,
                 const Parameters& model = {});

  /// Gathers the weights that forward reads from the leaves. Call it after the leaves are filled.
  /// Collective.
  void gather_weights() { gradients_->refresh_weights(); }
  /// Sums the whole gradients into those of the shards: complete() of gradients(). Call it after a
  /// step's last backward; a second call in a step changes nothing. Collective.
  void reduce_gradients() { gradients_->complete(); }
  /// Updates the shards and gathers the weights. Throws Error(kUsage) before reduce_gradients().
  /// Collective.
  void step(double lr, double gradient_scale = 1) override;

  /// What sums the gradients; a training loop calls its begin() and sum_during_backward().
  [[nodiscard]] const std::shared_ptr<GradientSync>& gradients() const { return gradients_; }

 private:
  std::shared_ptr<GradientSync> gradients_;
};

}  // namespace cleave::inline parallel
