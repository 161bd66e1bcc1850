#pragma once
#include <memory>
#include <vector>

#include "cleave/nn/experts.h"
#include "cleave/optim/optimizer.h"
#include "cleave/parallel/config.h"
#include "cleave/parallel/gradient_sync.h"
#include "cleave/pipeline/pipeline_model.h"

namespace cleave::inline parallel {

/// A model that parallelize() distributed: what a training step calls. The model must outlive it.
///
///   p.gradients->begin(micro_batches.size());
///   p.pipeline->run_train(micro_batches, loss);
///   p.gradients->complete();
///   p.optimizer->step(lr);
///   p.optimizer->zero_grad();
struct Parallelized {
  ParallelConfig config;
  ParallelAxes axes;
  std::unique_ptr<PipelineModel> pipeline;  ///< without a pipeline, one stage of all layers
  std::shared_ptr<GradientSync> gradients;
  std::unique_ptr<Optimizer> optimizer;  ///< of this rank's parameters; with ZeRO-1 its subclass

  /// The parameters of this rank's stages, each once.
  [[nodiscard]] const Parameters& parameters() const { return pipeline->parameters(); }
};

/// Throws Error(kShape) unless ep divides dp.
void check_expert_ranks(int ep, int dp);

/// Shares out the experts of a model, which has no memory yet, over axes.ep. parallelize() does it.
/// Throws Error(kShape) if the model has none, or fewer than ranks.
void share_out_experts(Layer& model, const ParallelAxes& axes, RankTokens tokens);

/// Distributes a model, which has no memory yet, as `config` says: attaches LoRA adapters,
/// shards its parameters, chooses its stages, attaches the wraps of recompute and FSDP, and makes
/// the optimizer. `sequence`: its layers in call order. Fill the leaves next, then call
/// gradients->refresh_weights(). Throws Error(kShape) for a configuration that does not fit the
/// model, naming the sizes that do.
Parallelized parallelize(Layer& model, const std::vector<Layer*>& sequence,
                         const ParallelAxes& axes, const ParallelConfig& config,
                         const OptimizerOptions& optimizer = {});

}  // namespace cleave::inline parallel
