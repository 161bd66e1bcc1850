#include "cleave/train/rank_model.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "cleave/nn/cross_entropy.h"
#include "cleave/parallel/fsdp.h"
#include "cleave/parallel/recompute.h"

namespace cleave {
namespace {

/// An axis over the ranks of a mesh {pp, dp, tp} with a place on dp in `dp`.
Axis axis_over(World& world, const TrainLayout& l, Range dp, const char* name) {
  std::vector<int> ranks;
  for (int p = 0; p < l.pp; ++p) {
    for (int64_t d = dp.begin; d < dp.end; ++d) {
      for (int t = 0; t < l.tp; ++t) ranks.push_back((p * l.dp + static_cast<int>(d)) * l.tp + t);
    }
  }
  return ranks.size() == 1 ? Axis() : Axis(world.group(ranks, name));
}

}  // namespace

std::string TrainLayout::describe() const {
  std::string text = str("tp=", tp, pp > 1 ? str(" x pp=", pp) : "", " x dp=", dp);
  if (pp > 1) text += str(", ", name(schedule));
  if (stages_per_rank > 1) text += str(" with ", stages_per_rank, " stages a rank");
  if (sequence_parallel) text += ", sequence parallel";
  if (sharding == DataSharding::kZero1) text += ", ZeRO-1";
  if (sharding == DataSharding::kFsdp) text += ", FSDP";
  if (recompute == RecomputeKind::kFull) text += ", blocks recomputed";
  if (recompute == RecomputeKind::kSelective) text += ", attention recomputed";
  return text;
}

RankModel::RankModel(std::unique_ptr<Model> model, const TrainLayout& layout, const Mesh& mesh,
                     World& world)
    : model_(std::move(model)),
      layout_(layout),
      pp_(mesh["pp"]),
      dp_(mesh["dp"]),
      tp_(mesh["tp"]),
      task_(task_of(*model_)) {
  const int64_t here = dp_.rank();
  same_rows_ = layout.pp == 1 ? tp_ : axis_over(world, layout, {here, here + 1}, "same rows");
  const bool is_cut_over_dp = layout.sharding != DataSharding::kNone;
  counted_ = is_cut_over_dp ? axis_over(world, layout, {0, layout.dp}, "all leaves") : same_rows_;
  if (layout.tp > 1) parallelize_module(*model_, tp_, layout.plan);
  pipeline_ = std::make_unique<PipelineModel>(
      model_->sequence(), pp_,
      PipelineOptions{.schedule = layout.schedule, .stages_per_rank = layout.stages_per_rank});
  put_on_wraps();
}

void RankModel::put_on_wraps() {
  const ShardPrecision precision{
      .param = layout_.compute_type,
      .reduce = layout_.compute_type == at::kDouble ? at::kDouble : at::kFloat};
  const std::vector<Layer*> sequence = model_->sequence();
  if (layout_.recompute == RecomputeKind::kFull) {
    for (const size_t i : blocks_of(sequence)) recompute(*sequence[i]);
  }
  if (layout_.sharding == DataSharding::kFsdp) {
    for (Layer* layer : pipeline_->local_layers()) {
      fully_shard(*layer, dp_, {.precision = precision});
    }
  }
  if (layout_.sharding == DataSharding::kZero1) {
    Parameters own;
    const Parameters& tied = pipeline_->tied_parameters();
    for (const auto& p : parameters()) {
      if (std::find(tied.begin(), tied.end(), p) == tied.end()) own.push_back(p);
    }
    zero1_ = std::make_unique<Zero1>(own, tied, dp_, precision);
  }
}

void RankModel::leaves_changed() {
  if (zero1_) zero1_->gather_weights();
  if (layout_.sharding != DataSharding::kNone) return;
  for (const auto& p : parameters()) {
    const bool is_same = p->leaf().scalar_type() == layout_.compute_type;
    p->set_use(is_same ? p->leaf() : p->leaf().to(layout_.compute_type));
  }
}

std::vector<MicroBatch> RankModel::inputs_of(std::span<const Batch> batches,
                                             const Context& shared) const {
  std::vector<MicroBatch> out;
  for (const Batch& batch : batches) {
    out.push_back(
        {.input = DTensor(batch.ids, tp_, Replicate{}), .context = context_of(batch, shared)});
  }
  return out;
}

PassResult RankModel::train_pass(std::span<const Batch> micro_batches, uint64_t seed,
                                 int64_t step) {
  std::vector<Tensor> targets;
  Tensor count = at::zeros({}, at::kLong);
  for (const Batch& batch : micro_batches) {
    targets.push_back(targets_of(batch, task_));
    count += targets.back().ne(-100).sum();
  }
  PassResult result;
  result.num_labels = dp_.all_reduce(count, "number of labels").item<int64_t>();
  CLEAVE_CHECK(result.num_labels > 0, Code::kFormat, "the batch of step ", step + 1,
               " has no label to learn from: every place is -100");
  Context shared;
  shared.training = true;
  shared.recompute_attention = layout_.recompute == RecomputeKind::kSelective;
  shared.seed = seed;
  shared.step = step;
  shared.valid_tokens = result.num_labels;
  const auto loss = [&](const DTensor& logits, size_t i) {
    return cross_entropy(logits, targets[i], {.valid_tokens = result.num_labels}).local();
  };
  for (const double part : pipeline_->run_train(inputs_of(micro_batches, shared), loss)) {
    result.loss += part;
  }
  finish_gradients();
  return result;
}

void RankModel::finish_gradients() {
  if (zero1_) {
    zero1_->reduce_gradients();
  } else if (layout_.sharding == DataSharding::kNone) {
    cleave::finish_gradients(parameters(), tp_);
    sum_gradients(parameters(), dp_);
  } else {
    for (const auto& p : parameters()) {
      Tensor& grad = p->leaf().mutable_grad();
      if (!grad.defined()) grad = at::zeros_like(p->leaf());
    }
  }
  pipeline_->sum_tied_gradients();
}

EvalSum RankModel::eval_pass(std::span<const Batch> micro_batches) {
  EvalSum sum;
  const auto loss = [&](const DTensor& logits, size_t i) {
    sum += eval_of(logits, targets_of(micro_batches[i], task_), task_);
    return at::scalar_tensor(0.0);  // the sum is told below
  };
  pipeline_->run_eval(inputs_of(micro_batches, Context()), loss);
  Tensor told = at::tensor(
      {sum.loss, static_cast<double>(sum.num_labels), static_cast<double>(sum.num_right)},
      at::kDouble);
  pp_.broadcast_(told, pp_.size() - 1, "eval");
  return {.loss = told[0].item<double>(),
          .num_labels = static_cast<int64_t>(told[1].item<double>()),
          .num_right = static_cast<int64_t>(told[2].item<double>())};
}

GradientNorm RankModel::gradient_norm() const {
  // The whole list, so that ranks mean the same parameter by its place.
  return cleave::gradient_norm(model_->parameters(), counted_);
}

}  // namespace cleave
