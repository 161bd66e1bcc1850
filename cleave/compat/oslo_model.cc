#include <filesystem>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "cleave/checkpoint/load.h"
#include "cleave/checkpoint/run_folder.h"
#include "cleave/compat/oslo.h"
#include "cleave/file/model_path.h"
#include "cleave/format/manifest.h"
#include "cleave/nn/label_loss.h"
#include "cleave/parallel/gradients.h"
#include "cleave/parallel/recompute.h"
#include "cleave/pipeline/stages.h"
#include "cleave/train/step.h"

namespace cleave::oslo {
namespace {

namespace fs = std::filesystem;

/// The possible tensor_parallel_sizes of a world of 4: "1, 2, 4".
std::string divisors_of(int size) {
  std::string text;
  for (int d = 1; d <= size; ++d) {
    if (size % d == 0) text += str(text.empty() ? "" : ", ", d);
  }
  return text;
}

Mesh mesh_of(const Config& config, World& world) {
  const int tp = config.tensor_parallel_size;
  CLEAVE_CHECK(tp <= world.size(), Code::kShape, "tensor_parallel_size=", tp, " is more than the ",
               world.size(), " ranks of this job; choose one of ", divisors_of(world.size()),
               " or start ", tp, " ranks");
  CLEAVE_CHECK(world.size() % tp == 0, Code::kShape, "tensor_parallel_size=", tp,
               " does not divide the ", world.size(), " ranks of this job; choose one of ",
               divisors_of(world.size()));
  return Mesh::build(world, {{"dp", world.size() / tp}, {"tp", tp}});
}

}  // namespace

ParallelModel::ParallelModel(std::unique_ptr<Model> model, const Config& config, World& world)
    : model_(std::move(model)) {
  const Mesh mesh = mesh_of(config, world);
  tp_ = mesh["tp"];
  dp_ = mesh["dp"];
  world_ = Mesh::build(world, {{"world", world.size()}})["world"];
  for (const auto& p : model_->parameters()) {
    CLEAVE_CHECK(!p->is_split() && !p->is_flat(), Code::kUsage, "the model is already sharded (",
                 p->name(), " is); call initialize once, with an unsharded model");
  }
  parallelize_module(*model_, tp_, model_->plan());
  if (!config.activation_checkpointing) return;
  const std::vector<Layer*> layers = model_->sequence();
  for (const size_t block : blocks_of(layers)) recompute(*layers[block]);
}

// If ranks shuffle with different seeds they train on different data, and nothing else fails.
void ParallelModel::check_same_batch(const Batch& batch) {
  if (std::exchange(has_checked_batch_, true) || tp_.size() == 1) return;
  Batch hashed = batch;
  if (!hashed.labels.defined()) hashed.labels = batch.ids;
  const Tensor mine = at::scalar_tensor(hashed.hash(), at::kLong).view({1});
  const std::vector<int64_t> one_each(static_cast<size_t>(tp_.size()), 1);
  const Tensor all = tp_.all_gather(mine, 0, one_each, "hash of the first batch");
  for (int64_t r = 1; r < tp_.size(); ++r) {
    CLEAVE_CHECK(all[r].item<int64_t>() == all[0].item<int64_t>(), Code::kDesync, "ranks 0 and ", r,
                 " of one tensor-parallel group have different first batches; choose sequences by "
                 "the rank of data_parallel() only, with the same seed on all ranks");
  }
}

Output ParallelModel::operator()(const Batch& batch, const Context& context) {
  check_same_batch(batch);
  Output output;
  output.logits = (*model_)(DTensor(batch.ids, tp_, Replicate{}), context_of(batch, context));
  if (batch.labels.defined()) {
    output.loss = label_loss(output.logits, targets_of(batch, task_of(*model_))).local();
  }
  return output;
}

double ParallelModel::step(Optimizer& optimizer, double lr, double max_norm) {
  const Parameters parameters = model_->parameters();
  average_gradients(parameters, tp_, dp_);
  const GradientNorm norm = clip_grad_norm_of(parameters, max_norm, 2, true);
  optimizer.step(lr);
  return norm.value;
}

Generation ParallelModel::generate(const std::vector<Ids>& prompts,
                                   const GenerateSettings& settings) {
  GenerateSettings own = settings;
  if (own.eos_ids.empty()) own.eos_ids = model_->facts().eos_ids;
  return cleave::generate(*model_, tp_, prompts, own);
}

void ParallelModel::from_parallelized(const std::string& directory) {
  CLEAVE_CHECK(fs::is_directory(directory), Code::kIo, directory,
               " is not a folder; give one that save_parallelized wrote, or another model folder");
  const fs::path found = resolve_run_folder(directory);
  const ModelFolder folder =
      fs::exists(found / "config.json")
          ? ModelFolder::open(found)
          : ModelFolder{.path = found, .config = model_->config(), .stem = "model"};
  // Two ranks' files that were swapped have the same shapes: only the checksums detect it.
  if (fs::exists(fs::path(folder.path) / kManifestName)) verify_checkpoint(folder.path, world_);
  const Tensor& first = model_->parameters().front()->leaf();
  load_model(*model_, folder, first.defined() ? first.scalar_type() : at::kFloat);
}

ParallelModel initialize(std::unique_ptr<Model> model, const Config& config, World& world) {
  return {std::move(model), config, world};
}

}  // namespace cleave::oslo
