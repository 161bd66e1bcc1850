#include "pretrain.h"

#include <cstdio>

#include <ATen/ATen.h>

#include "cleave/nn/cross_entropy.h"
#include "save.h"

namespace bert_pretraining {
namespace {

using cleave::cross_entropy;
using cleave::DTensor;
using cleave::Replicate;

// The data of one step, the same on all tensor-parallel ranks of a data-parallel rank.
struct StepData {
  std::vector<Batch> micro_batches;
  int64_t num_masked = 0, num_sequences = 0;  // over all data-parallel ranks
};

StepData data_of(const PretrainingDataset& dataset, DistributedSampler& sampler, int64_t step,
                 int64_t num_micro_batches) {
  StepData data;
  int64_t own_masked = 0;
  for (int64_t i = 0; i < num_micro_batches; ++i) {
    const int64_t number = step * num_micro_batches + i;
    sampler.set_epoch(number / sampler.num_batches());
    data.micro_batches.push_back(
        dataset.batch(sampler.batch(number % sampler.num_batches()), sampler.epoch()));
    own_masked += data.micro_batches.back().masked_labels.ne(-100).sum().item<int64_t>();
    data.num_sequences += data.micro_batches.back().ids.size(0);
  }
  const auto& dp = nxd::get_data_parallel_group();
  data.num_masked =
      dp.all_reduce(at::scalar_tensor(own_masked, at::kLong), "masked tokens").item<int64_t>();
  data.num_sequences *= dp.size();
  return data;
}

// This micro-batch's part of the two losses, which are means over the global batch.
Tensor loss_of(const Scores& scores, const Batch& batch, const StepData& data) {
  const auto& tp = nxd::get_tensor_model_parallel_group();
  const auto mean = [&](const Tensor& logits, const Tensor& labels, int64_t count) {
    return cross_entropy(DTensor(logits, tp, Replicate{}), labels, {.valid_tokens = count}).local();
  };
  return mean(scores.words, batch.masked_labels, data.num_masked) +
         mean(scores.next, batch.next_sentence, data.num_sequences);
}

void check_sizes(const PretrainOptions& options) {
  const BertConfig& sizes = options.model;
  CLEAVE_CHECK(sizes.hidden_size % sizes.num_attention_heads == 0, cleave::Code::kShape,
               "num_attention_heads=", sizes.num_attention_heads,
               " does not divide hidden_size=", sizes.hidden_size);
  CLEAVE_CHECK(sizes.num_attention_heads % options.tensor_parallel_size == 0, cleave::Code::kShape,
               "tensor_parallel_size=", options.tensor_parallel_size,
               " does not divide num_attention_heads=", sizes.num_attention_heads);
}

}  // namespace

std::vector<Step> pretrain(cleave::World& world, const PretrainOptions& options,
                           const PretrainingDataset& dataset) {
  check_sizes(options);
  nxd::initialize_model_parallel(world,
                                 {.tensor_model_parallel_size = options.tensor_parallel_size});
  DistributedSampler sampler({.dataset_size = dataset.size(),
                              .num_replicas = nxd::get_data_parallel_world_size(),
                              .rank = nxd::get_data_parallel_rank(),
                              .batch_size = options.batch_size,
                              .seed = options.seed});
  CLEAVE_CHECK(sampler.num_batches() > 0, cleave::Code::kUsage, "batch_size=", options.batch_size,
               " on ", nxd::get_data_parallel_size(), " data-parallel ranks is more than the ",
               dataset.size(), " sequences of the data; choose a smaller batch_size");
  BertForPreTraining model(options.model);
  nxd::move_model_to_device(model, at::kCPU, {.seed = options.seed, .dtype = options.model.dtype});
  const auto parameters = model.parameters();
  // Weight decay applies to matrices, not to biases and norms.
  cleave::Optimizer optimizer(parameters, {.weight_decay = options.weight_decay});
  const cleave::LrSchedule schedule{.kind = cleave::LrSchedule::Kind::kLinear,
                                    .peak = options.lr,
                                    .warmup = options.warmup_steps,
                                    .num_steps = options.max_steps};

  const auto& dp = nxd::get_data_parallel_group();
  std::vector<Step> steps;
  for (int64_t step = 0; step < options.max_steps; ++step) {
    world.note_step(step + 1);
    const StepData data = data_of(dataset, sampler, step, options.grad_accum_usteps);
    Context context;
    context.training = true;
    context.seed = options.seed;
    context.step = step;
    double loss_sum = 0;
    for (int64_t i = 0; i < options.grad_accum_usteps; ++i) {
      const Batch& batch = data.micro_batches[static_cast<size_t>(i)];
      context.first_sample = (i * dp.size() + dp.rank()) * options.batch_size;
      // optimizer_step averages gradients over the dp ranks, so the loss is multiplied by dp.
      const Tensor loss = loss_of(model(batch, context), batch, data) * dp.size();
      loss.backward();
      loss_sum += loss.item<double>() / dp.size();
    }
    const double norm = nxd::clip_grad_norm(parameters, options.max_grad_norm);
    nxd::optimizer_step(optimizer, nxd::get_data_parallel_group(nxd::as_list), schedule.at(step));
    optimizer.zero_grad();
    const Tensor sum = dp.all_reduce(at::scalar_tensor(loss_sum, at::kDouble), "loss");
    steps.push_back({.loss = sum.item<double>(), .grad_norm = norm});
    if (options.print && world.rank() == 0 && (step % 10 == 9 || step == 0)) {
      std::printf("step %lld  loss %.4f  norm %.3f  lr %.2e\n", static_cast<long long>(step + 1),
                  steps.back().loss, norm, schedule.at(step));
      std::fflush(stdout);
    }
  }
  if (!options.output_dir.empty()) {
    save({.folder = options.output_dir,
          .tokenizer_folder = options.tokenizer_folder,
          .step = options.max_steps},
         world, model, optimizer);
  }
  nxd::destroy_model_parallel();
  return steps;
}

}  // namespace bert_pretraining
