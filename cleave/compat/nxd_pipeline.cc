#include "cleave/compat/nxd_pipeline.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include <ATen/ATen.h>

#include "cleave/base/error.h"
#include "cleave/compat/internal/nxd.h"
#include "cleave/compat/parallel_state.h"
#include "cleave/file/atomic_write.h"
#include "cleave/nn/gradient_state.h"

namespace cleave::nxd {

/// The micro-batches of a batch, as the pipeline takes them and as inputs of the loss.
struct NxDPPModel::Work {
  std::vector<MicroBatch> micro_batches;
  std::vector<PipelineInputs> inputs;

  [[nodiscard]] PipelineLoss loss(const OutputLoss& spec,
                                  const std::vector<double>& weights) const {
    return [this, &spec, &weights](const DTensor& output, size_t i) {
      // A mean over no labels is NaN, so it is not computed; backward needs the graph.
      if (weights[i] == 0) return output.local().flatten().slice(0, 0, 0).sum();
      return spec(output, inputs[i]) * weights[i];
    };
  }
};

namespace {

Tensor part_of(const Tensor& t, int64_t part, int64_t num_parts) {
  const int64_t rows = t.size(0);
  const int64_t begin = rows * part / num_parts;
  return t.narrow(0, begin, rows * (part + 1) / num_parts - begin);
}

Context context_of(const PipelineInputs& inputs) {
  const auto named = [&](const char* name) {
    const auto at = inputs.find(name);
    return at == inputs.end() ? Tensor() : at->second;
  };
  Context context;
  context.key_mask = named("attention_mask");
  if (context.key_mask.defined()) context.key_mask = context.key_mask.to(at::kBool);
  context.token_types = named("token_type_ids");
  context.positions = named("position_ids");
  return context;
}

/// The sequences of the data-parallel ranks before this one. Collective.
int64_t rows_before(int64_t rows, const Axis& dp) {
  if (dp.size() == 1) return 0;
  const std::vector<int64_t> one_each(static_cast<size_t>(dp.size()), 1);
  const Tensor all = dp.all_gather(at::full({1}, rows, at::kLong), 0, one_each, "sequences");
  return all.narrow(0, 0, dp.rank()).sum().item<int64_t>();
}

int64_t num_labels_of(const PipelineInputs& inputs) {
  const auto labels = inputs.find("labels");
  CLEAVE_CHECK(
      labels != inputs.end(), Code::kUsage,
      "token_weighted_loss counts labels, and no input is called labels; set count_labels");
  return labels->second.ne(-100).sum().item<int64_t>();
}

}  // namespace

Tensor PlainLayer::operator()(const Tensor& x, const Context& context) {
  const DTensor whole(x, get_tensor_model_parallel_group(), Replicate{});
  return (*this)(whole, context).local();
}

DTensor PlainLayer::forward(const DTensor& x, const Context& context) {
  return mine(x.with(compute(x.local(), context)));
}

std::optional<Placement> PlainLayer::accepts(const DTensor& /*x*/) const {
  return Replicate{};
}

NxDPPModel::NxDPPModel(Layer& module, std::vector<Layer*> sequence, NxDPPModelOptions options)
    : module_(module), sequence_(std::move(sequence)), options_(std::move(options)) {
  check_options();
  pp_ = get_pipeline_model_parallel_group();
  dp_ = get_data_parallel_group();
  tp_ = get_tensor_model_parallel_group();
  put_on_group(module_);
  for (const Layer* layer : sequence_) {
    CLEAVE_CHECK(dynamic_cast<const LayerGroup*>(layer) == nullptr, Code::kUsage, layer->path(),
                 " is a LayerGroup: the pipeline cannot call it; derive it from nxd::PlainLayer, "
                 "which computes on plain tensors, or from Layer");
  }
  cuts_ = options_.pipeline_cuts;
  if (options_.auto_partition || !cuts_.empty()) partition();
}

NxDPPModel::~NxDPPModel() = default;

void NxDPPModel::check_options() const {
  const NxDPPModelOptions& o = options_;
  CLEAVE_CHECK(model_parallel_is_initialized(), Code::kUsage,
               "NxDPPModel needs the groups of initialize_model_parallel; call that first");
  CLEAVE_CHECK(o.transformer_layer_cls != nullptr, Code::kUsage,
               "transformer_layer_cls is missing; give the class of the model's blocks");
  CLEAVE_CHECK(!o.auto_partition || o.pipeline_cuts.empty(), Code::kUsage,
               "auto_partition chooses the cuts itself, and ", o.pipeline_cuts.size(),
               " pipeline_cuts are given; give only one of the two");
  CLEAVE_CHECK(!o.balance_by_cost || o.auto_partition, Code::kUsage,
               "balance_by_cost needs auto_partition; set both");
  CLEAVE_CHECK(o.pipeline_cuts.empty() || !o.input_names.empty(), Code::kUsage,
               "pipeline_cuts need input_names; give the names of the inputs of run_train");
  CLEAVE_CHECK(!(o.broadcast_and_average_loss && o.return_mb_loss), Code::kUsage,
               "broadcast_and_average_loss returns one number and return_mb_loss one per "
               "micro-batch; choose one");
  CLEAVE_CHECK(o.num_microbatches >= 1, Code::kUsage, "num_microbatches=", o.num_microbatches,
               "; expected at least 1");
}

void NxDPPModel::cut_pipeline_stage(const std::string& name) {
  CLEAVE_CHECK(!pipeline_, Code::kUsage, "cut_pipeline_stage(", name,
               ") was called after the model was partitioned; call it before partition()");
  CLEAVE_CHECK(!options_.auto_partition, Code::kUsage, "cut_pipeline_stage(", name,
               ") was called, but auto_partition chooses the cuts itself; leave one of them out");
  cuts_.push_back(name);
}

Stages NxDPPModel::stages() const {
  const int num_stages = pp_.size() * options_.virtual_pipeline_size;
  if (!options_.auto_partition) return stages_from_cuts(sequence_, cuts_, num_stages);
  std::vector<size_t> blocks;
  for (size_t i = 0; i < sequence_.size(); ++i) {
    if (options_.transformer_layer_cls(*sequence_[i])) blocks.push_back(i);
  }
  CLEAVE_CHECK(!blocks.empty(), Code::kUsage, "auto_partition: none of the model's ",
               sequence_.size(), " layers is of the class transformer_layer_cls");
  return options_.balance_by_cost ? balanced_stages(layer_costs(sequence_), num_stages)
                                  : even_stages(sequence_, blocks, num_stages);
}

void NxDPPModel::partition() {
  CLEAVE_CHECK(!pipeline_, Code::kUsage, "the model is already partitioned");
  const bool is_interleaved = options_.virtual_pipeline_size > 1;
  pipeline_ = std::make_unique<PipelineModel>(
      sequence_, pp_,
      PipelineOptions{.schedule = is_interleaved ? ScheduleKind::kInterleaved : ScheduleKind::k1F1B,
                      .stages_per_rank = options_.virtual_pipeline_size,
                      .stages = stages(),
                      .trace = !options_.trace_file_path.empty()});
  allocate();
  const std::vector<Layer*>& layers = pipeline_->local_layers();
  GradientSyncOptions sync{.precision = std::nullopt, .pipeline = pipeline_.get()};
  if (options_.use_zero1_optimizer) sync.sharding = DataSharding::kZero1;
  if (std::any_of(layers.begin(), layers.end(), [](const Layer* l) { return l->is_sealed(); })) {
    sync.sharding = DataSharding::kFsdp;
    for (const auto& p : pipeline_->parameters()) {
      CLEAVE_CHECK(p->is_flat() || dp_.size() == 1, Code::kUsage, p->name(),
                   " is not sharded and other layers are; call fully_shard on each layer of the "
                   "sequence, or on none");
    }
  }
  gradients_ = std::make_shared<GradientSync>(pipeline_->parameters(), dp_, sync);
  sum_during_backward(gradients_, layers);
}

void NxDPPModel::allocate() {
  for (Layer* layer : pipeline_->local_layers()) {
    if (options_.param_init_fn) {
      layer->walk([&](Layer& each) { options_.param_init_fn(each, at::kCPU); });
    }
    allocate_parallel_layers(*layer, at::kCPU, options_.seed);
    materialize(*layer, {.seed = options_.seed, .dtype = options_.dtype});
  }
}

const PipelineModel& NxDPPModel::partitioned() const {
  CLEAVE_CHECK(pipeline_, Code::kUsage,
               "the model is not partitioned; give pipeline_cuts or auto_partition, or call "
               "partition()");
  return *pipeline_;
}

/// The number of micro-batches of a batch. Layers that FSDP shards gather their weights in every
/// call, so there all data-parallel ranks have the same number.
int64_t NxDPPModel::count_of(int64_t rows, bool training) const {
  if (training) return options_.num_microbatches;
  const int64_t own = std::min<int64_t>(options_.num_microbatches, std::max<int64_t>(rows, 1));
  // ZeRO-1 shards the leaves too, but its weights are whole between calls.
  const Parameters& all = pipeline_->parameters();
  const auto is_gathered = [](const auto& p) { return p->is_flat() && !p->is_readable(); };
  // A stage without parameters asks too: all stages of a pipeline need the same number.
  const Tensor gathers = at::scalar_tensor(
      static_cast<int64_t>(std::any_of(all.begin(), all.end(), is_gathered)), at::kLong);
  if (pp_.all_reduce(gathers, "whether weights are gathered", ReduceOp::kMax).item<int64_t>() == 0)
    return own;
  // The smallest is the negated maximum.
  const Tensor negated = at::scalar_tensor(-own, at::kLong);
  return -dp_.all_reduce(negated, "number of micro-batches", ReduceOp::kMax).item<int64_t>();
}

NxDPPModel::Work NxDPPModel::work_of(const PipelineInputs& inputs, bool training) const {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : inputs) names.push_back(name);
  const std::set<std::string> wanted(options_.input_names.begin(), options_.input_names.end());
  CLEAVE_CHECK(wanted.empty() || wanted == std::set<std::string>(names.begin(), names.end()),
               Code::kUsage, "the inputs are ", list_text(names), "; input_names are ",
               list_text(options_.input_names));
  const std::string& first = options_.first_input;
  CLEAVE_CHECK(inputs.contains(first), Code::kUsage, "the inputs are ", list_text(names),
               "; the first layer needs ", first);
  const int64_t rows = inputs.at(first).dim() > 0 ? inputs.at(first).size(0) : 0;
  for (const auto& [name, tensor] : inputs) {
    CLEAVE_CHECK(tensor.dim() > 0 && tensor.size(0) == rows, Code::kShape, name, " has sizes ",
                 tensor.sizes(), "; dim 0 is the ", rows, " sequences of ", first);
  }
  const int64_t count = count_of(rows, training);
  CLEAVE_CHECK(rows >= count, Code::kShape, "a batch of ", rows, " sequences does not make ", count,
               " micro-batches; give num_microbatches of 1 to ", rows);
  const int64_t first_row = training ? rows_before(rows, dp_) : 0;  // only dropout reads it
  Work work;
  for (int64_t i = 0; i < count; ++i) {
    PipelineInputs part;
    for (const auto& [name, tensor] : inputs) part[name] = part_of(tensor, i, count);
    Context context = context_of(part);
    context.training = training;
    context.seed = options_.seed;
    context.step = num_steps_;
    context.first_sample = first_row + rows * i / count;
    if (options_.set_context) options_.set_context(context, part);
    work.micro_batches.push_back(
        {.input = DTensor(part.at(first), tp_, Replicate{}), .context = context});
    work.inputs.push_back(std::move(part));
  }
  return work;
}

/// Each micro-batch's weight in the loss, which is summed over micro-batches and dp.
std::vector<double> NxDPPModel::weights_of(const Work& work) const {
  const double even = 1.0 / static_cast<double>(std::ssize(work.inputs) * dp_.size());
  if (!options_.token_weighted_loss) return std::vector<double>(work.inputs.size(), even);
  const auto count_labels = options_.count_labels ? options_.count_labels : &num_labels_of;
  std::vector<double> counts;
  double sum = 0;
  for (const PipelineInputs& part : work.inputs) {
    counts.push_back(static_cast<double>(count_labels(part)));
    sum += counts.back();
  }
  sum = dp_.all_reduce(at::scalar_tensor(sum, at::kDouble), "number of labels").item<double>();
  for (double& count : counts) count /= std::max(sum, 1.0);
  return counts;
}

std::vector<double> NxDPPModel::reported(const std::vector<double>& losses,
                                         const std::vector<double>& weights) const {
  if (options_.return_mb_loss) {
    std::vector<double> out;
    for (size_t i = 0; i < losses.size(); ++i) out.push_back(losses[i] / weights[i]);
    return pipeline_->has_last_stage() ? out : std::vector<double>{};
  }
  double sum = 0;
  for (const double loss : losses) sum += loss;
  if (options_.broadcast_and_average_loss) {
    const Tensor all = dp_.all_reduce(at::scalar_tensor(sum, at::kDouble), "mean loss");
    return {all.item<double>()};
  }
  if (!pipeline_->has_last_stage()) return {};
  double weight = 0;
  for (const double w : weights) weight += w;
  return {sum / weight};
}

std::vector<double> NxDPPModel::run_train(const PipelineInputs& inputs) {
  (void)partitioned();
  CLEAVE_CHECK(options_.output_loss_value_spec, Code::kUsage,
               "run_train needs output_loss_value_spec; set it to the loss function");
  const Work work = work_of(inputs, /*training=*/true);
  const std::vector<double> weights = weights_of(work);
  gradients_->begin(work.micro_batches.size());
  gradients_->refresh_weights();
  const std::vector<double> losses =
      pipeline_->run_train(work.micro_batches, work.loss(options_.output_loss_value_spec, weights));
  gradients_->complete();
  // No division: the losses are already weighted for the mean over data-parallel ranks.
  for (const auto& p : pipeline_->parameters()) record_mean(*p);
  ++num_steps_;
  if (!std::exchange(has_traced_, true)) write_trace();
  return reported(losses, weights);
}

std::vector<double> NxDPPModel::run_eval(const PipelineInputs& inputs) {
  (void)partitioned();
  CLEAVE_CHECK(options_.output_loss_value_spec, Code::kUsage,
               "run_eval needs output_loss_value_spec; set it to the loss function, or call "
               "run_eval_outputs");
  gradients_->refresh_weights();
  const Work work = work_of(inputs, /*training=*/false);
  const std::vector<double> weights = weights_of(work);
  const auto loss = work.loss(options_.output_loss_value_spec, weights);
  return reported(pipeline_->run_eval(work.micro_batches, loss), weights);
}

std::vector<DTensor> NxDPPModel::run_eval_outputs(const PipelineInputs& inputs) {
  (void)partitioned();
  gradients_->refresh_weights();
  return pipeline_->run_eval(work_of(inputs, /*training=*/false).micro_batches);
}

void NxDPPModel::write_trace() {
  if (options_.trace_file_path.empty()) return;
  const Trace trace = pipeline_->trace();
  if (pp_.rank() == 0 && dp_.rank() == 0 && tp_.rank() == 0) {
    write_atomic(options_.trace_file_path, std::string_view(chrome_trace(trace)));
  }
}

Parameters NxDPPModel::local_parameters() const {
  return partitioned().parameters();
}

std::vector<std::pair<std::string, std::shared_ptr<Parameter>>> NxDPPModel::local_named_parameters()
    const {
  std::vector<std::pair<std::string, std::shared_ptr<Parameter>>> out;
  for (const auto& p : partitioned().parameters()) out.emplace_back(p->name(), p);
  return out;
}

std::vector<std::pair<std::string, Layer*>> NxDPPModel::local_named_modules() const {
  std::vector<std::pair<std::string, Layer*>> out;
  for (Layer* layer : partitioned().local_layers()) {
    layer->walk([&](Layer& each) { out.emplace_back(each.path(), &each); });
  }
  return out;
}

std::map<std::string, Tensor> NxDPPModel::local_state_dict() const {
  std::map<std::string, Tensor> out;
  for (const auto& p : partitioned().parameters()) out[p->name()] = p->leaf().detach();
  return out;
}

void NxDPPModel::load_state_dict(const std::map<std::string, Tensor>& state) {
  const auto own = local_state_dict();
  for (const auto& [name, value] : state) {
    CLEAVE_CHECK(own.contains(name), Code::kFormat, name, " is not a parameter of this rank");
  }
  for (const auto& [name, to] : own) {
    const auto from = state.find(name);
    CLEAVE_CHECK(from != state.end(), Code::kFormat, name, " is missing in the state");
    CLEAVE_CHECK(from->second.sizes() == to.sizes(), Code::kShape, name, " has sizes ",
                 from->second.sizes(), "; this rank holds ", to.sizes());
    const at::NoGradGuard no_grad;
    to.copy_(from->second);
  }
}

}  // namespace cleave::nxd
