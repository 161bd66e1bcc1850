#include "cleave/parallel/parallelize.h"

#include <utility>

#include "cleave/base/str.h"
#include "cleave/parallel/fsdp.h"
#include "cleave/parallel/recompute.h"
#include "cleave/parallel/zero1.h"

namespace cleave {
namespace {

/// The settings with the matrices that Muon updates: those of the blocks. Embeddings, the head and
/// all vectors are left to AdamW.
OptimizerOptions with_matrices(OptimizerOptions options, const std::vector<Layer*>& sequence) {
  if (options.kind != OptimizerOptions::Kind::kMuon || !options.matrices.empty()) return options;
  for (const size_t block : blocks_of(sequence)) {
    for (const auto& p : trained_of(sequence[block]->parameters())) {
      if (p->shape().size() == 2) options.matrices.insert(p->name());
    }
  }
  return options;
}

}  // namespace

std::string ParallelConfig::describe() const {
  std::string text = str("tp=", tp, pp > 1 ? str(" x pp=", pp) : "", " x dp=", dp);
  if (pp > 1) text += str(", ", name(schedule));
  if (stages_per_rank > 1) text += str(" with ", stages_per_rank, " stages a rank");
  if (sequence_parallel) text += ", sequence parallel";
  if (sharding == DataSharding::kZero1) text += ", ZeRO-1";
  if (sharding == DataSharding::kFsdp) text += ", FSDP";
  if (recompute == RecomputeKind::kFull) text += ", blocks recomputed";
  if (recompute == RecomputeKind::kSelective) text += ", attention recomputed";
  if (lora) text += str(", ", lora->describe());
  return text;
}

Parallelized parallelize(Layer& model, const std::vector<Layer*>& sequence,
                         const ParallelAxes& axes, const ParallelConfig& config,
                         const OptimizerOptions& optimizer) {
  Parallelized out{
      .config = config, .axes = axes, .pipeline = {}, .gradients = {}, .optimizer = {}};
  if (config.lora) attach_lora(model, sequence, *config.lora, config.compute_type);
  if (config.tp > 1) parallelize_module(model, axes.tp, config.plan);
  model.name_tree();
  out.pipeline = std::make_unique<PipelineModel>(
      sequence, axes.pp,
      PipelineOptions{.schedule = config.schedule, .stages_per_rank = config.stages_per_rank});
  if (config.recompute == RecomputeKind::kFull) {
    for (const size_t block : blocks_of(sequence)) recompute(*sequence[block]);
  }
  const ShardPrecision precision{.param = config.compute_type, .reduce = config.leaf_type()};
  if (config.sharding == DataSharding::kFsdp) {
    for (const auto& stage : out.pipeline->local_stages()) {
      fully_shard(stage, axes.dp, {.precision = precision});
    }
  }
  const Parameters trained = trained_of(out.parameters());
  out.gradients = std::make_shared<GradientSync>(
      trained, axes.dp,
      GradientSyncOptions{
          .sharding = config.sharding, .precision = precision, .pipeline = out.pipeline.get()});
  sum_during_backward(out.gradients, out.pipeline->local_layers());
  const OptimizerOptions settings = with_matrices(optimizer, sequence);
  if (config.sharding == DataSharding::kZero1) {
    out.optimizer = std::make_unique<Zero1Optimizer>(out.gradients, settings);
  } else {
    out.optimizer = std::make_unique<Optimizer>(trained, settings);
  }
  return out;
}

}  // namespace cleave
