#include "cleave/train/rank_model.h"

#include <ATen/ATen.h>

#include "cleave/nn/balance_loss.h"
#include "cleave/nn/head_loss.h"
#include "cleave/nn/ids.h"
#include "cleave/nn/label_loss.h"
#include "cleave/train/preference.h"

namespace cleave::inline train {
namespace {

/// The sum of the micro-batches' auxiliary losses, weighted, before the coefficient.
std::optional<double> aux_loss_of(const std::vector<MicroBatch>& inputs,
                                  const std::optional<BalanceOptions>& options, double loss_scale) {
  if (!options) return std::nullopt;
  std::vector<Tensor> summands;
  summands.reserve(inputs.size());
  for (const MicroBatch& input : inputs) summands.push_back(input.context.balance->summand());
  const Tensor all = at::stack(summands).to(at::kCPU);  // one copy: the host waits once
  const double* values = all.const_data_ptr<double>();
  double sum = 0;
  for (size_t i = 0; i < summands.size(); ++i) {
    sum += values[i] / (options->coefficient * loss_scale);
  }
  return sum;
}

std::vector<Tensor> targets_of_all(std::span<const Batch> batches, Task task) {
  std::vector<Tensor> targets;
  targets.reserve(batches.size());
  for (const Batch& batch : batches) targets.push_back(targets_of(batch, task));
  return targets;
}

}  // namespace

RankModel::RankModel(std::unique_ptr<Model> model, const ParallelConfig& layout, const Mesh& mesh,
                     World& world, const OptimizerOptions& optimizer)
    : model_(std::move(model)),
      parallelized_(parallelize(
          *model_, model_->sequence(),
          with_experts({.pp = mesh["pp"], .dp = mesh["dp"], .tp = mesh["tp"]}, world, layout.ep),
          layout, optimizer)),
      task_(task_of(*model_)) {
  same_batch_ = layout.pp == 1 ? mesh["tp"] : mesh.flatten(world, {"pp", "tp"}, "same batch");
  const bool is_sharded_over_dp = layout.sharding != DataSharding::kNone;
  norm_axis_ =
      is_sharded_over_dp ? mesh.flatten(world, {"pp", "dp", "tp"}, "all leaves") : same_batch_;
}

std::vector<Batch> RankModel::moved(std::span<const Batch> batches) const {
  const at::Device device = parameters().front()->leaf().device();
  std::vector<Batch> out;
  for (const Batch& batch : batches) {
    if (!device.is_cpu()) check_ids(batch.ids, model_->facts().vocab_size, "the batch: ");
    out.push_back(batch.to(device));
  }
  return out;
}

std::vector<MicroBatch> RankModel::inputs_of(std::span<const Batch> batches,
                                             const Context& shared) const {
  std::vector<MicroBatch> out;
  for (const Batch& batch : batches) {
    out.push_back({.input = DTensor(batch.ids, parallelized_.axes.tp, Replicate{}),
                   .context = context_of(batch, shared)});
  }
  return out;
}

/// Gives micro-batches their auxiliary losses, if the model has one. `scale` is the factor of a
/// term of the loss. A micro-batch that only fills up has no terms, and so no weight.
void RankModel::add_balance(std::vector<MicroBatch>& inputs, std::span<const Batch> batches,
                            double scale) const {
  const auto options = model_->balance();
  for (size_t i = 0; options && i < batches.size(); ++i) {
    const Tensor terms = num_terms(targets_of(batches[i], task_), task_);
    inputs[i].context.balance = std::make_shared<BalanceLoss>(
        *options, scale * terms.item<double>(), inputs[i].input.local().device());
  }
}

/// Lets a language model's head compute the loss in parts, if its logits are large. Preferences
/// need the loss of each token, which only a frozen head gives in training.
void RankModel::add_head_loss(std::vector<MicroBatch>& inputs, std::span<const Tensor> targets,
                              int64_t count, double scale) const {
  if (task_ != Task::kLm && task_ != Task::kDpo) return;
  for (size_t i = 0; i < inputs.size(); ++i) {
    inputs[i].context.head_loss = std::make_shared<const HeadLoss>(HeadLoss{
        .labels = targets[i], .count = count, .scale = scale, .is_per_token = task_ == Task::kDpo});
  }
}

Context RankModel::context_of_step(uint64_t seed, int64_t step) const {
  Context context;
  // Preferences are learned without dropout, like the reference log-probabilities. With
  // --lora-dropout the policy has that of the adapters and that of its config.
  const auto& lora = parallelized_.config.lora;
  context.training = task_ != Task::kDpo || (lora && lora->dropout > 0);
  context.recompute_attention = parallelized_.config.recompute == RecomputeKind::kSelective;
  context.seed = seed;
  context.step = step;
  return context;
}

PassResult RankModel::train_pass(std::span<const Batch> batches, uint64_t seed, int64_t step,
                                 double loss_scale) {
  const std::vector<Batch> micro_batches = moved(batches);
  Tensor count = at::zeros({}, at::kLong);
  for (const Batch& batch : batches) count += num_terms(targets_of(batch, task_), task_);
  const std::vector<Tensor> targets = targets_of_all(micro_batches, task_);
  PassResult result;
  count = parallelized_.axes.dp.all_reduce(count, "number of labels");
  result.num_labels = count.item<int64_t>();
  if (result.num_labels == 0) return result;  // on all ranks
  const Context shared = context_of_step(seed, step);
  const double scale = loss_scale / static_cast<double>(result.num_labels);
  std::vector<MicroBatch> inputs = inputs_of(micro_batches, shared);
  add_balance(inputs, batches, scale);
  add_head_loss(inputs, targets, result.num_labels, loss_scale);
  double margin_sum = 0;
  int64_t num_right = 0;
  const auto own_loss = [&](const DTensor& output, size_t i) {
    if (output.dim() == 0) return output.local();  // the loss that its head has computed
    if (task_ != Task::kDpo) {
      return label_loss(output, targets[i], result.num_labels).local() * loss_scale;
    }
    const PairSums sums = pair_sums(output, targets[i], micro_batches[i].reference, dpo_beta_);
    margin_sum += sums.margin;
    num_right += sums.right;
    return sums.loss * scale;
  };
  const auto loss = [&](const DTensor& output, size_t i) {
    const Tensor own = own_loss(output, i);
    const auto& balance = inputs[i].context.balance;
    return balance ? own + balance->summand().to(own.scalar_type()) : own;
  };
  parallelized_.gradients->begin(micro_batches.size());
  const PendingLosses losses = parallelized_.pipeline->start_train(inputs, loss);
  parallelized_.gradients->complete();
  for (const auto& p : parallelized_.gradients->parameters()) {
    if (loss_scale != 1) p->leaf().mutable_grad().div_(loss_scale);
  }
  result.norm = gradient_norm();  // a device has had no pause when the host reads it and the losses
  for (const double part : losses()) result.loss += part / loss_scale;
  result.aux_loss = aux_loss_of(inputs, model_->balance(), loss_scale);
  if (task_ == Task::kDpo) {
    Tensor rewards = at::tensor({margin_sum, static_cast<double>(num_right)}, at::kDouble);
    share_result(rewards, "rewards");
    const auto num_pairs = static_cast<double>(result.num_labels);
    result.reward_margin = rewards[0].item<double>() / num_pairs;
    result.reward_accuracy = rewards[1].item<double>() / num_pairs;
  }
  return result;
}

Tensor RankModel::log_probs(std::span<const Batch> batches) {
  const std::vector<Batch> micro_batches = moved(batches);
  std::vector<int64_t> begins{0};
  for (const Batch& batch : batches) begins.push_back(begins.back() + batch.ids.size(0));
  Tensor all = at::zeros({begins.back()}, at::kDouble);
  const std::vector<Tensor> targets = targets_of_all(micro_batches, task_);
  const auto note = [&](const DTensor& result, size_t i) {
    all.narrow(0, begins[i], batches[i].ids.size(0)).copy_(sequence_log_probs(result, targets[i]));
    return at::scalar_tensor(0.0);  // the values are broadcast below
  };
  std::vector<MicroBatch> inputs = inputs_of(micro_batches, Context());
  add_head_loss(inputs, targets, /*count=*/1, /*scale=*/1);
  parallelized_.pipeline->run_eval(inputs, note);
  share_result(all, "log-probabilities");
  return all;
}

EvalSum RankModel::eval_sum(const DTensor& result, const Batch& batch) const {
  const Tensor targets = targets_of(batch, task_);
  if (task_ != Task::kDpo) return eval_of(result, targets, task_);
  const PairSums sums = pair_sums(result, targets, batch.reference, dpo_beta_);
  return {.loss_sum = sums.loss.item<double>(), .num_labels = sums.number, .num_right = sums.right};
}

void RankModel::share_result(Tensor& t, std::string_view site) const {
  const Axis& pp = parallelized_.axes.pp;
  pp.broadcast_(t, pp.size() - 1, site);
}

EvalSum RankModel::eval_pass(std::span<const Batch> batches) {
  const std::vector<Batch> micro_batches = moved(batches);
  EvalSum sum;
  const auto loss = [&](const DTensor& result, size_t i) {
    sum += eval_sum(result, micro_batches[i]);
    return at::scalar_tensor(0.0);  // the sum is broadcast below
  };
  const std::vector<Tensor> targets = targets_of_all(micro_batches, task_);
  std::vector<MicroBatch> inputs = inputs_of(micro_batches, Context());
  add_head_loss(inputs, targets, /*count=*/1, /*scale=*/1);
  parallelized_.pipeline->run_eval(inputs, loss);
  Tensor sums = sum.tensor();
  share_result(sums, "eval");
  return EvalSum::from(sums);
}

double RankModel::expert_seconds() const {
  return parallelized_.axes.ep.seconds() + parallelized_.axes.copies.seconds();
}

GradientNorm RankModel::gradient_norm() const {
  const RecordedScope scope(EventKind::kPhase, "gradient norm");
  // The list of the whole model, so that an index means the same parameter on all ranks.
  const Parameters trained = trained_of(model_->parameters());
  // Sharded leaves are different on all ranks of norm_axis_, and so are experts.
  const bool is_sharded = parallelized_.config.sharding != DataSharding::kNone;
  return cleave::gradient_norm(trained, norm_axis_, is_sharded ? Axis() : parallelized_.axes.ep);
}

}  // namespace cleave::inline train
