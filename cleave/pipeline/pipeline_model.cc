#include "cleave/pipeline/pipeline_model.h"

#include <algorithm>
#include <climits>
#include <map>

#include <ATen/ATen.h>

#include "cleave/base/clock.h"
#include "cleave/nn/gradient_state.h"
#include "cleave/pipeline/pipeline_run.h"

namespace cleave::inline pipeline {

PipelineModel::PipelineModel(std::vector<Layer*> sequence, const Axis& pp, PipelineOptions options)
    : sequence_(std::move(sequence)), pp_(pp), options_(std::move(options)) {
  Stages& stages = options_.stages;
  if (stages.empty() && pp_.size() > std::ssize(blocks_of(sequence_))) {
    // Refuse before a schedule is made: its check takes time quadratic in the number of ranks.
    const int64_t wanted = int64_t{pp_.size()} * std::max(1, options_.stages_per_rank);
    (void)even_stages(sequence_, blocks_of(sequence_),
                      static_cast<int>(std::min<int64_t>(wanted, INT_MAX)));
  }
  const int num_stages = make_schedule(shape_of(1)).num_stages();
  if (stages.empty()) stages = even_stages(sequence_, blocks_of(sequence_), num_stages);
  bool fits = std::ssize(stages) == num_stages;
  int64_t end = 0;
  for (const Range& r : stages) {
    fits = fits && r.begin == end && r.size() > 0;
    end = r.end;
  }
  CLEAVE_CHECK(fits && end == std::ssize(sequence_), Code::kShape, stages.size(),
               " stages were given for pp x virtual = ", num_stages, " and ", sequence_.size(),
               " layers; give one consecutive range of layers for each stage, none empty, that "
               "cover all layers");
  for (const auto& stage : local_stages()) {
    local_layers_.insert(local_layers_.end(), stage.begin(), stage.end());
  }
  find_parameters();
}

std::vector<std::vector<Layer*>> PipelineModel::local_stages() const {
  std::vector<std::vector<Layer*>> out;
  const int num_stages = static_cast<int>(options_.stages.size());
  for (int s = pp_.rank(); s < num_stages; s += pp_.size()) {
    const Range& r = options_.stages[static_cast<size_t>(s)];
    out.emplace_back(sequence_.begin() + r.begin, sequence_.begin() + r.end);
  }
  return out;
}

void PipelineModel::find_parameters() {
  Parameters all;
  std::map<const Parameter*, std::vector<int>> users;
  for (size_t s = 0; s < options_.stages.size(); ++s) {
    const int rank = static_cast<int>(s) % pp_.size();
    const Range& layers = options_.stages[s];
    for (int64_t i = layers.begin; i < layers.end; ++i) {
      for (const auto& p : sequence_[static_cast<size_t>(i)]->parameters()) {
        std::vector<int>& ranks = users[p.get()];
        if (ranks.empty()) all.push_back(p);
        if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) ranks.push_back(rank);
      }
    }
  }
  for (const auto& p : all) {
    const std::vector<int>& ranks = users[p.get()];
    const bool is_used = std::find(ranks.begin(), ranks.end(), pp_.rank()) != ranks.end();
    if (!is_used || !p->is_here()) {
      p->set_ownership(Parameter::Ownership::kNotOwned);
      continue;
    }
    p->set_ownership(ranks.front() == pp_.rank() ? Parameter::Ownership::kOwned
                                                 : Parameter::Ownership::kCopy);
    parameters_.push_back(p);
    if (ranks.size() == 1) continue;
    tied_.push_back(p);
    tied_ranks_.push_back(ranks);
  }
}

ScheduleShape PipelineModel::shape_of(size_t num_micro_batches) const {
  return {.kind = options_.schedule,
          .num_ranks = pp_.size(),
          .stages_per_rank = options_.stages_per_rank,
          .num_micro_batches = static_cast<int>(num_micro_batches)};
}

void PipelineModel::run(PipelineRun& run, const Schedule& schedule) {
  if (options_.trace) pp_.barrier("begin of a traced pipeline");
  run.execute(schedule, monotonic_s());
  if (options_.trace) events_ = run.take_events();
}

namespace {

/// Every rank gets the inputs, but only the ranks whose stages read one compute parts of its
/// gradient.
void check_inputs_need_no_gradient(const std::vector<MicroBatch>& micro_batches) {
  for (const MicroBatch& micro_batch : micro_batches) {
    std::vector<Tensor> inputs{micro_batch.input.local()};
    if (!micro_batch.context.values.empty()) {
      for (const Tensor& value : micro_batch.context.values.locals()) inputs.push_back(value);
    }
    CLEAVE_CHECK(std::ranges::none_of(inputs, [](const Tensor& t) { return t.requires_grad(); }),
                 Code::kUsage,
                 "an input of the pipeline or a named value needs a gradient, and each stage would "
                 "compute another part of it; make the value by a layer of the sequence "
                 "(set_output_name), or detach it");
  }
}

}  // namespace

std::vector<double> PipelineModel::run_train(const std::vector<MicroBatch>& micro_batches,
                                             const PipelineLoss& loss) {
  return start_train(micro_batches, loss)();
}

PendingLosses PipelineModel::start_train(const std::vector<MicroBatch>& micro_batches,
                                         const PipelineLoss& loss) {
  CLEAVE_CHECK(loss != nullptr, Code::kUsage,
               "run_train needs a loss and none was given; pass one");
  if (pp_.size() > 1) check_inputs_need_no_gradient(micro_batches);
  for (const auto& p : parameters_) {
    // Frozen parameters record the axis too: a stage may have no others.
    const bool is_tied = !p->is_frozen() && std::find(tied_.begin(), tied_.end(), p) != tied_.end();
    record_stages(*p, pp_, is_tied);
  }
  PipelineRun run({sequence_, options_.stages, pp_, micro_batches, loss});
  this->run(run, make_schedule(shape_of(micro_batches.size())));
  return run.losses();
}

std::vector<DTensor> PipelineModel::run_eval(const std::vector<MicroBatch>& micro_batches) {
  const PipelineLoss none;
  PipelineRun run({sequence_, options_.stages, pp_, micro_batches, none});
  this->run(run, make_forward_schedule(shape_of(micro_batches.size())));
  return run.take_outputs();
}

std::vector<double> PipelineModel::run_eval(const std::vector<MicroBatch>& micro_batches,
                                            const PipelineLoss& loss) {
  PipelineRun run({sequence_, options_.stages, pp_, micro_batches, loss});
  this->run(run, make_forward_schedule(shape_of(micro_batches.size())));
  return run.losses()();
}

// The first rank that uses a parameter sums in the order of stages and sends the others the sum.
void PipelineModel::sum_tied_gradients() const {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < tied_.size(); ++i) {
    const Tensor& leaf = tied_[i]->leaf();
    if (tied_[i]->is_frozen() || is_tied_sum(*tied_[i])) continue;
    Tensor& grad = leaf.mutable_grad();
    if (!grad.defined()) grad = at::zeros_like(leaf);
    // A single bf16 gradient is narrow (FlatShards::start_reduce), and other stages may have wide
    // ones.
    if (grad.scalar_type() != leaf.scalar_type()) grad = grad.to(leaf.scalar_type());
    const std::string& site = tied_[i]->name();
    const auto& ranks = tied_ranks_[i];
    if (ranks.front() != pp_.rank()) {
      pp_.send(grad, ranks.front(), site);
      grad.copy_(pp_.recv(ranks.front(), grad.sizes(), grad.options(), site));
    } else {
      for (size_t r = 1; r < ranks.size(); ++r) {
        grad.add_(pp_.recv(ranks[r], grad.sizes(), grad.options(), site));
      }
      for (size_t r = 1; r < ranks.size(); ++r) pp_.send(grad, ranks[r], site);
    }
    record_tied_sum(*tied_[i]);
  }
}

}  // namespace cleave::inline pipeline
