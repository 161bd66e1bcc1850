#include "cleave/parallel/parallelize.h"

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cleave/base/str.h"
#include "cleave/mesh/scalar_type.h"
#include "cleave/nn/head_loss.h"
#include "cleave/parallel/fsdp.h"
#include "cleave/parallel/recompute.h"
#include "cleave/parallel/zero1.h"

namespace cleave::inline parallel {
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
  if (ep > 1) text += str(", ep=", ep);
  if (pp > 1) text += str(", ", name(schedule));
  if (stages_per_rank > 1) text += str(" with ", stages_per_rank, " stages a rank");
  if (sequence_parallel) text += ", sequence parallel";
  if (sharding == DataSharding::kZero1) text += ", ZeRO-1";
  if (sharding == DataSharding::kFsdp) text += ", FSDP";
  if (reduce_type && dp > 1) text += str(", ", name(dtype_of(*reduce_type)), " gradient sync");
  if (recompute == RecomputeKind::kFull) text += ", blocks recomputed";
  if (recompute == RecomputeKind::kSelective) text += ", attention recomputed";
  if (lora) text += str(", ", lora->describe());
  return text;
}

void check_expert_ranks(int ep, int dp) {
  CLEAVE_CHECK(ep > 0 && dp % ep == 0, Code::kShape, "ep=", ep, " does not divide dp=", dp,
               "; blocks of ep data-parallel ranks share out the experts");
}

ParallelAxes with_experts(ParallelAxes axes, World& world, int ep) {
  if (ep == 1) return axes;
  check_expert_ranks(ep, axes.dp.size());
  const std::vector<int> ranks = axes.dp.ranks();
  const int begin = axes.dp.rank() / ep * ep;
  axes.ep = Axis(world.group({ranks.begin() + begin, ranks.begin() + begin + ep}, "ep"));
  std::vector<int> same;
  for (int r = axes.dp.rank() % ep; r < axes.dp.size(); r += ep) {
    same.push_back(ranks[static_cast<size_t>(r)]);
  }
  if (same.size() > 1) axes.copies = Axis(world.group(same, "copies of experts"));
  return axes;
}

namespace {

void check_sizes(const ParallelAxes& axes, const ParallelConfig& config) {
  CLEAVE_CHECK(
      axes.pp.size() == config.pp && axes.dp.size() == config.dp && axes.tp.size() == config.tp,
      Code::kUsage, "the config has pp=", config.pp, ", dp=", config.dp, " and tp=", config.tp,
      ", and the axes have ", axes.pp.size(), ", ", axes.dp.size(), " and ", axes.tp.size(),
      " ranks; give the sizes of the mesh's axes");
}

void check_experts(const ParallelAxes& axes, const ParallelConfig& config) {
  if (config.ep == 1) return;
  check_expert_ranks(config.ep, config.dp);
  CLEAVE_CHECK(axes.ep.size() == config.ep && axes.copies.size() == config.dp / config.ep,
               Code::kUsage, "the axes ep and copies have ", axes.ep.size(), " and ",
               axes.copies.size(), " ranks for ep=", config.ep, " and dp=", config.dp,
               "; make them by with_experts()");
}

}  // namespace

void share_out_experts(Layer& model, const ParallelAxes& axes, RankTokens tokens) {
  if (axes.ep.size() == 1) return;
  bool has_experts = false;
  model.walk([&](Layer& layer) {
    auto* experts = dynamic_cast<Experts*>(&layer);
    if (experts == nullptr) return;
    experts->share_out(axes.ep, axes.copies, tokens);
    has_experts = true;
  });
  CLEAVE_CHECK(has_experts, Code::kShape, "ep=", axes.ep.size(),
               " shares out experts, and the model has none; leave it out");
}

namespace {

/// Refuses trained parameters that no layer of the sequence has: they would silently stay as they
/// are.
void check_all_in_sequence(Layer& model, const std::vector<Layer*>& sequence) {
  std::set<const Parameter*> known;
  for (Layer* layer : sequence) {
    for (const auto& p : layer->parameters()) known.insert(p.get());
  }
  for (const auto& p : trained_of(model.parameters())) {
    CLEAVE_CHECK(known.contains(p.get()), Code::kUsage, p->name(),
                 " belongs to no layer of the sequence, so it would not be trained; put it into a "
                 "layer of the sequence, or freeze() it");
  }
}

}  // namespace

Parallelized parallelize(Layer& model, const std::vector<Layer*>& sequence,
                         const ParallelAxes& axes, const ParallelConfig& config,
                         const OptimizerOptions& optimizer) {
  Parallelized out{
      .config = config, .axes = axes, .pipeline = {}, .gradients = {}, .optimizer = {}};
  check_sizes(axes, config);
  check_experts(axes, config);
  if (config.lora) attach_lora(model, sequence, *config.lora, config.compute_type);
  if (config.tp > 1) parallelize_module(model, axes.tp, config.plan);
  model.name_tree();
  check_all_in_sequence(model, sequence);
  share_out_experts(model, axes, RankTokens::kOwn);
  out.pipeline = std::make_unique<PipelineModel>(
      sequence, axes.pp,
      PipelineOptions{.schedule = config.schedule, .stages_per_rank = config.stages_per_rank});
  if (config.recompute == RecomputeKind::kFull) {
    std::set<Layer*> blocks;  // one may be called several times
    for (const size_t block : blocks_of(sequence)) blocks.insert(sequence[block]);
    for (Layer* block : blocks) recompute(*block);
  }
  if (auto* head = dynamic_cast<Linear*>(sequence.back())) {
    compute_loss_in_parts(*head, config.head_loss);
  }
  const ShardPrecision precision{
      .param = config.compute_type, .reduce = config.leaf_type(), .sent = config.reduce_type};
  if (config.sharding == DataSharding::kFsdp) {
    for (const auto& stage : out.pipeline->local_stages()) {
      fully_shard(stage, axes.dp, {.precision = precision});
    }
  }
  const Parameters trained = trained_of(out.parameters());
  out.gradients =
      std::make_shared<GradientSync>(trained, axes.dp,
                                     GradientSyncOptions{.sharding = config.sharding,
                                                         .precision = precision,
                                                         .pipeline = out.pipeline.get(),
                                                         .bucket_bytes = config.bucket_bytes});
  sum_during_backward(out.gradients, out.pipeline->local_layers());
  const OptimizerOptions settings = with_matrices(optimizer, sequence);
  if (config.sharding == DataSharding::kZero1) {
    out.optimizer = std::make_unique<Zero1Optimizer>(out.gradients, settings, model.parameters());
  } else {
    out.optimizer = std::make_unique<Optimizer>(trained, settings, model.parameters());
  }
  return out;
}

}  // namespace cleave::inline parallel
