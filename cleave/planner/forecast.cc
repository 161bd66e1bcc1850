#include "cleave/planner/forecast.h"

#include <algorithm>
#include <map>
#include <set>
#include <span>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "cleave/data/dataset.h"
#include "cleave/kernels/device.h"
#include "cleave/nn/experts.h"
#include "cleave/nn/head_loss.h"
#include "cleave/nn/label_loss.h"
#include "cleave/nn/quantized_leaf.h"
#include "cleave/parallel/parallelize.h"
#include "cleave/pipeline/p2p_channel.h"
#include "cleave/torch_internals/deferred.h"
#include "cleave/torch_internals/meta_device.h"

namespace cleave::inline planner {
namespace {

/// An activation between two layers.
struct Shape {
  std::vector<int64_t> sizes;
  Placement placement;
  at::ScalarType type = at::kFloat;
};

Tensor on_meta(const std::vector<int64_t>& sizes, at::ScalarType type) {
  return at::empty(sizes, at::dtype(type).device(at::kMeta));
}

void give_shapes(const Parameters& parameters, at::ScalarType type) {
  for (const auto& p : parameters) {
    if (p->ownership() == Parameter::Ownership::kNotOwned) continue;
    if (p->is_quantized()) {
      set_quantized_meta(*p);
    } else {
      p->set_leaf(on_meta(p->leaf_shape(), p->leaf_type(type)));
    }
  }
}

/// The most bytes that loading one quantized weight needs for a moment, in addition to the weights
/// and before the optimizer has memory. They are for each element its fp32 value; for int8 also
/// this value divided by the scale, and for a flat leaf also the scale and the number of the row.
int64_t bytes_to_load(const Parameters& parameters) {
  constexpr int64_t kNf4 = 4, kWhole = 8, kFlat = 20;
  int64_t most = 0;
  for (const auto& p : parameters) {
    if (!p->is_quantized() || p->ownership() == Parameter::Ownership::kNotOwned) continue;
    const int64_t each = p->is_nf4() ? kNf4 : p->is_flat() ? kFlat : kWhole;
    most = std::max(most, each * c10::multiply_integers(p->leaf_shape()));
  }
  return most;
}

/// Bytes of gradients after the last backward: of the local parts, or with FSDP of the shards.
/// Their type is the leaves', or bf16 if nothing was added to them (GradientSync).
int64_t gradient_bytes(const Parameters& parameters, const ParallelConfig& layout,
                       size_t num_micro_batches) {
  const bool is_sharded = layout.sharding == DataSharding::kFsdp;
  int64_t sum = 0;
  for (const auto& p : parameters) {
    // An expert may be on one data-parallel rank only.
    const bool is_of_ranks = p->copies() ? p->copies()->size() > 1 : layout.dp > 1 || is_sharded;
    const bool is_sum = num_micro_batches > 1 || is_of_ranks;
    const bool stays_narrow = !is_sum && layout.compute_type == at::kBFloat16;
    const auto item =
        static_cast<int64_t>(at::elementSize(stays_narrow ? at::kBFloat16 : layout.leaf_type()));
    sum += item * c10::multiply_integers(is_sharded ? p->leaf_shape() : p->local_shape());
  }
  return sum;
}

/// The Context of a training step.
Context context_of(const ParallelConfig& layout) {
  Context context;
  context.training = true;
  context.recompute_attention = layout.recompute == RecomputeKind::kSelective;
  return context;
}

/// Sequences in each micro-batch of the data-parallel rank with the largest share of the batch.
std::vector<int64_t> rows_of(const ParallelConfig& layout, const StepShape& step) {
  std::vector<int64_t> out;
  for (int64_t left = (step.batch_size + layout.dp - 1) / layout.dp; left > 0;) {
    const int64_t samples = std::min(left, step.micro_batch_size);
    out.push_back(samples * step.rows_per_sample);
    left -= samples;
  }
  return out;
}

Schedule schedule_of(const ParallelConfig& l, size_t num_micro_batches) {
  return make_schedule({.kind = l.schedule,
                        .num_ranks = l.pp,
                        .stages_per_rank = l.stages_per_rank,
                        .num_micro_batches = static_cast<int>(num_micro_batches)});
}

/// The outputs of all layers for `rows` sequences on place `tp`, without a pipeline.
std::vector<Shape> shapes_between(const Json& config, const ParallelConfig& layout,
                                  const StepShape& step, int64_t rows, int tp) {
  const auto model = make_model(config);
  ParallelConfig whole = layout;
  whole.pp = 1;
  whole.stages_per_rank = 1;
  whole.schedule = ScheduleKind::k1F1B;
  whole.sharding = DataSharding::kNone;
  const Parallelized parallelized =
      parallelize(*model, model->sequence(), dry_axes(whole, {.tp = tp}), whole);
  give_shapes(model->parameters(), layout.leaf_type());
  const at::NoGradGuard no_grad;
  parallelized.gradients->refresh_weights();
  DTensor x(on_meta({rows, step.seq_len}, at::kLong), parallelized.axes.tp, Replicate{});
  Context context = context_of(layout);
  std::vector<Shape> out;
  for (Layer* layer : model->sequence()) {
    x = call_in_order(std::span(&layer, 1), x, context);
    out.push_back({.sizes = x.local().sizes().vec(),
                   .placement = x.placement(),
                   .type = x.local().scalar_type()});
  }
  return out;
}

/// What shapes_between() returns, by rows. It is the same for all pipeline ranks.
using ShapesByRows = std::map<int64_t, std::vector<Shape>>;

using AxisCalls = std::map<std::string, DryCalls>;

/// The traffic of all dry axes so far.
AxisCalls calls_of(const ParallelAxes& axes) {
  AxisCalls out;
  for (const Axis& axis : {axes.tp, axes.dp, axes.pp, axes.ep, axes.copies}) {
    out[axis.name()] = dry_calls(axis);
  }
  return out;
}

/// The calls of `now` that came after `before`.
DryCalls since(DryCalls now, const DryCalls& before) {
  for (const auto& [kind, traffic] : before) {
    now[kind].num_calls -= traffic.num_calls;
    now[kind].bytes -= traffic.bytes;
  }
  return now;
}

/// Adds `times` times the traffic of `more`.
void add_calls(DryCalls& sum, const DryCalls& more, int64_t times) {
  for (const auto& [kind, traffic] : more) {
    sum[kind].num_calls += times * traffic.num_calls;
    sum[kind].bytes += times * traffic.bytes;
  }
}

/// A micro-batch that is neither the first nor the last, as most are.
constexpr int kUsual = 1;

/// How many micro-batches must run to show everything that pipeline rank `pp` does. With more, the
/// rank would only repeat what it does for kUsual, with no more of them in flight.
size_t enough_micro_batches(const ParallelConfig& layout, size_t num_micro_batches, int pp) {
  const int held = peak_live(schedule_of(layout, num_micro_batches), pp);
  // Interleaved schedules take micro-batches in groups of one for each pipeline rank.
  const bool has_groups =
      layout.schedule == ScheduleKind::kInterleaved || layout.schedule == ScheduleKind::kZeroBubble;
  const size_t group = has_groups ? static_cast<size_t>(layout.pp) : 1;
  const int stages = layout.stages_per_rank;
  const auto most_held = static_cast<size_t>((held + stages - 1) / stages);
  size_t enough = num_micro_batches % group;
  while (enough < std::max<size_t>(kUsual + 2, most_held)) enough += group;
  const auto holds_all = [&] { return peak_live(schedule_of(layout, enough), pp) == held; };
  while (enough < num_micro_batches && !holds_all()) enough += group;
  // Two more, so that the most micro-batches are also in flight while there are gradients.
  enough += std::max<size_t>(2, group);
  return std::min(enough, num_micro_batches);
}

/// One rank's step on the meta device.
class DryRank {
 public:
  DryRank(const Json& config, const ParallelConfig& layout, const StepShape& step,
          const RankPlace& place, ShapesByRows& shapes)
      : gpu_(step.is_on_gpu ? std::make_unique<MetaStandsForGpu>() : nullptr),
        step_(step),
        model_(make_model(config)),
        parallelized_(parallelize(*model_, model_->sequence(), dry_axes(layout, place), layout,
                                  step.optimizer)),
        rows_(rows_of(layout, step)),
        num_left_out_(rows_.size() - enough_micro_batches(layout, rows_.size(), place.pp)),
        shapes_(shapes) {
    // All but the last have the same number of rows.
    rows_.erase(rows_.begin(), rows_.begin() + static_cast<std::ptrdiff_t>(num_left_out_));
    schedule_ = schedule_of(layout, rows_.size());
    if (place.pp == 0 && layout.stages_per_rank == 1) return;  // receives nothing from other stages
    for (const int64_t rows : std::set<int64_t>(rows_.begin(), rows_.end())) {
      if (shapes_.contains(rows)) continue;
      shapes_[rows] = shapes_between(config, layout, step, rows, place.tp);
    }
  }

  RankForecast run() {
    MemoryForecast m;
    give_shapes(model_->parameters(), parallelized_.config.leaf_type());
    parallelized_.gradients->refresh_weights();
    m.weights = memory_.live();
    (void)parallelized_.optimizer->states();
    m.optimizer = memory_.live() - m.weights;
    memory_.reset_peak();
    const AxisCalls before = calls_of(parallelized_.axes);
    WorkCounter counter;
    RankForecast out;
    parallelized_.gradients->begin(rows_.size());
    for (const Action& action : schedule_.ranks[rank()]) {
      out.rest.add(counter.take());
      const auto num_same = action.micro_batch == kUsual ? 1 + num_left_out_ : 1;
      num_same == 1 ? act(action) : act_for_others(action);
      out.actions[{action.kind, action.stage}].add(
          counter.take(),
          static_cast<double>(num_same) / static_cast<double>(rows_.size() + num_left_out_));
    }
    m.gradients =
        gradient_bytes(parallelized_.gradients->parameters(), parallelized_.config, rows_.size());
    parallelized_.gradients->complete();
    parallelized_.gradients->refresh_weights();
    out.rest.add(counter.take());
    out.rest.add_far_pass(static_cast<double>(m.gradients));  // their norm
    out.optimizer_bytes = optimizer_bytes(m);
    // The optimizer's step is in place, but for step_bytes(), when activations are freed.
    m.activations = std::max({memory_.peak() - m.weights - m.optimizer - m.gradients,
                              parallelized_.optimizer->step_bytes(),
                              bytes_to_load(model_->parameters()) - m.optimizer - m.gradients});
    out.memory = m;
    if (step_.is_saved_async) out.memory.saved_copy = saved_bytes(m.optimizer);
    add_traffic(before, out);
    return out;
  }

  /// The layers of this rank's stages.
  [[nodiscard]] std::vector<std::string> layers() const {
    std::vector<std::string> out;
    for (const Layer* layer : parallelized_.pipeline->local_layers()) {
      out.push_back(layer->path());
    }
    return out;
  }

  /// Valid after run().
  /// The first of the tp ranks that hold most elements. Usually the first of all; but one between
  /// others may hold parts of more KV heads.
  [[nodiscard]] int fullest_tp_rank() const {
    std::vector<int64_t> elements(static_cast<size_t>(parallelized_.config.tp));
    for (const auto& p : parallelized_.parameters()) {
      if (!p->is_split() || p->ownership() == Parameter::Ownership::kNotOwned) continue;
      const SplitPtr split = p->placement().split();
      const int64_t of_index = c10::multiply_integers(p->shape()) / split->whole();
      for (size_t r = 0; r < elements.size(); ++r) {
        for (const Range& range : split->ranges(static_cast<int>(r))) {
          elements[r] += range.size() * of_index;
        }
      }
    }
    return static_cast<int>(std::ranges::max_element(elements) - elements.begin());
  }
  [[nodiscard]] std::vector<RankParameter> parameters() const {
    std::vector<RankParameter> out;
    for (const auto& p : parallelized_.parameters()) {
      out.push_back({.name = p->name(),
                     .shape = p->local_shape(),
                     .held = c10::multiply_integers(p->leaf_shape())});
    }
    return out;
  }

 private:
  /// What forward keeps for backward: the layer's value and named ones.
  struct InFlight {
    std::vector<Tensor> inputs, outputs;
    std::shared_ptr<DeferredGradients> deferred;
  };

  /// Leaves and moments are read and written; gradients are read, bf16 copies written.
  [[nodiscard]] double optimizer_bytes(const MemoryForecast& m) const {
    const ParallelConfig& layout = parallelized_.config;
    const auto leaf = static_cast<double>(at::elementSize(layout.leaf_type()));
    const auto copy = static_cast<double>(at::elementSize(layout.compute_type));
    double elements = 0;
    for (const auto& p : trained_of(parallelized_.gradients->parameters())) {
      if (p->ownership() == Parameter::Ownership::kNotOwned) continue;
      elements += static_cast<double>(c10::multiply_integers(p->leaf_shape()));
    }
    return elements * (3 * leaf + (copy < leaf ? copy : 0)) + 2 * static_cast<double>(m.optimizer);
  }

  /// Bytes that the rank writes of a checkpoint: leaves, narrower copies of them, and moments,
  /// which take `moment_bytes` here. Ranks that hold the same ones share them out.
  [[nodiscard]] int64_t saved_bytes(int64_t moment_bytes) const {
    const ParallelConfig& layout = parallelized_.config;
    const auto leaf = static_cast<double>(at::elementSize(layout.leaf_type()));
    const auto copy = static_cast<double>(at::elementSize(layout.compute_type));
    const bool is_sharded = layout.sharding != DataSharding::kNone;
    double held = 0, written = 0;  // elements
    for (const auto& p : trained_of(parallelized_.gradients->parameters())) {
      if (p->ownership() == Parameter::Ownership::kNotOwned) continue;
      const auto elements = static_cast<double>(c10::multiply_integers(p->leaf_shape()));
      const int64_t num_holders = p->copies() ? p->copies()->size() : layout.dp;
      held += elements;
      written += is_sharded ? elements : elements / static_cast<double>(num_holders);
    }
    if (held == 0) return 0;
    const double moments = static_cast<double>(moment_bytes) / held;
    return static_cast<int64_t>(written * (leaf + (copy < leaf ? copy : 0) + moments));
  }

  /// Runs an action of kUsual. Each micro-batch that is left out would have the same traffic.
  void act_for_others(const Action& action) {
    const AxisCalls before = calls_of(parallelized_.axes);
    const DryTraffic sent = sent_;
    act(action);
    const auto times = static_cast<int64_t>(num_left_out_);
    for (const auto& [axis, calls] : calls_of(parallelized_.axes)) {
      add_calls(left_out_[axis], since(calls, before.at(axis)), times);
    }
    sent_.num_calls += times * (sent_.num_calls - sent.num_calls);
    sent_.bytes += times * (sent_.bytes - sent.bytes);
  }

  /// Adds the traffic since `before`.
  void add_traffic(const AxisCalls& before, RankForecast& out) {
    out.pp = sent_;
    for (const auto& [axis, calls] : calls_of(parallelized_.axes)) {
      DryCalls own = since(calls, before.at(axis));
      add_calls(own, left_out_[axis], 1);
      const DryTraffic sum = sum_of(own);
      DryTraffic* kind = &out.dp;
      if (axis == "tp") kind = &out.tp;
      if (axis == "pp") kind = &out.pp;
      kind->num_calls += sum.num_calls;
      kind->bytes += sum.bytes;
      out.calls[axis] = own;
    }
    DryTraffic& sent = out.calls["pp"]["send"];
    sent.num_calls += 2 * sent_.num_calls;  // a header before each
    sent.bytes += sent_.bytes + sent_.num_calls * kMessageHeaderBytes;
    for (auto& [axis, calls] : out.calls) {
      calls.erase("recv");
      std::erase_if(calls, [](const auto& each) { return each.second.num_calls == 0; });
    }
  }

  [[nodiscard]] size_t rank() const { return static_cast<size_t>(parallelized_.axes.pp.rank()); }
  const Stages& stages() { return parallelized_.pipeline->stages(); }
  bool is_last(int stage) { return stage + 1 == std::ssize(stages()); }

  /// The names of the outputs of the first `count` layers, with the layers' indices.
  std::vector<std::pair<std::string, size_t>> named_before(int64_t count) {
    std::vector<std::pair<std::string, size_t>> out;
    const std::vector<Layer*> sequence = model_->sequence();
    for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
      const std::string& name = sequence[i]->output_name();
      if (!name.empty()) out.emplace_back(name, i);
    }
    return out;
  }

  /// The output of layer `i` as another stage receives it.
  DTensor received(int64_t rows, size_t i, InFlight& live) {
    const Shape& shape = shapes_.at(rows)[i];
    live.inputs.push_back(on_meta(shape.sizes, shape.type).requires_grad_());
    return DTensor(live.inputs.back(), parallelized_.axes.tp, shape.placement);
  }

  DTensor input_of(const Action& action, Context& context, InFlight& live) {
    const int64_t rows = rows_[static_cast<size_t>(action.micro_batch)];
    if (action.stage == 0) {
      const Axis& tp = parallelized_.axes.tp;
      return DTensor(on_meta({rows, step_.seq_len}, at::kLong), tp, Replicate{});
    }
    const int64_t begin = stages()[static_cast<size_t>(action.stage)].begin;
    DTensor x = received(rows, static_cast<size_t>(begin - 1), live);
    for (const auto& [name, i] : named_before(begin)) {
      context.values = context.values.with(name, received(rows, i, live));
    }
    return x;
  }

  void forward(const Action& action) {
    InFlight live;
    Context context = context_of(parallelized_.config);
    if (schedule_.has(Action::Kind::kWeight)) {
      live.deferred = std::make_shared<DeferredGradients>();
      context.deferred = live.deferred;
    }
    DTensor x = input_of(action, context, live);
    if (is_last(action.stage) && model_->task() == "lm") {
      const int64_t rows = rows_[static_cast<size_t>(action.micro_batch)];
      context.head_loss = std::make_shared<const HeadLoss>(
          HeadLoss{.labels = on_meta({rows, step_.seq_len}, at::kLong),
                   .count = step_.tokens(),
                   .is_per_token = step_.rows_per_sample > 1});
    }
    const Range& layers = stages()[static_cast<size_t>(action.stage)];
    const std::vector<Layer*> sequence = model_->sequence();
    x = call_in_order(std::span(sequence).subspan(static_cast<size_t>(layers.begin),
                                                  static_cast<size_t>(layers.size())),
                      x, context);
    if (is_last(action.stage) && context.head_loss && x.dim() < 3) {
      live.outputs = {x.local()};  // the head has computed the loss, or that of each token
    } else if (is_last(action.stage)) {
      // Labels as the model's task has them: one per token, per sequence, or per class.
      const bool is_multilabel = model_->task() == "multilabel";
      auto sizes = x.local().sizes().vec();
      sizes.pop_back();
      if (is_multilabel) sizes.push_back(x.size(-1));  // on every rank, those of all classes
      const auto type = is_multilabel || model_->task() == "regression" ? at::kDouble : at::kLong;
      live.outputs = {label_loss(x, on_meta(sizes, type), step_.tokens()).local()};
    } else {
      live.outputs = {x.local()};
      for (const auto& entry : named_before(layers.end)) {
        live.outputs.push_back(context.values.at(entry.first).local());
      }
      for (const Tensor& output : live.outputs) note_message(output);
    }
    live_.emplace(std::pair(action.stage, action.micro_batch), std::move(live));
  }

  void backward(const Action& action) {
    InFlight& live = live_.at({action.stage, action.micro_batch});
    std::vector<Tensor> ends, gradients;
    for (const Tensor& output : live.outputs) {
      if (!output.requires_grad()) continue;  // all weights so far are frozen
      ends.push_back(output);
      gradients.push_back(at::empty_like(output));
    }
    if (!ends.empty()) torch::autograd::backward(ends, gradients);
    for (const Tensor& input : live.inputs) note_message(input);
    live.inputs = live.outputs = {};
    if (!live.deferred) live_.erase({action.stage, action.micro_batch});
  }

  void act(const Action& action) {
    if (action.kind == Action::Kind::kForward) return forward(action);
    if (action.kind == Action::Kind::kBackward) return backward(action);
    live_.at({action.stage, action.micro_batch}).deferred->run();
    live_.erase({action.stage, action.micro_batch});
  }

  void note_message(const Tensor& t) {
    sent_.bytes += static_cast<int64_t>(t.nbytes());
    ++sent_.num_calls;
  }

  std::unique_ptr<MetaStandsForGpu> gpu_;  // if the step is on one
  MetaMemory memory_;
  const StepShape& step_;
  std::unique_ptr<Model> model_;
  Parallelized parallelized_;
  std::vector<int64_t> rows_;  // of the micro-batches that are run
  size_t num_left_out_;        // micro-batches that are as kUsual
  ShapesByRows& shapes_;
  Schedule schedule_;
  AxisCalls left_out_;  // traffic of the micro-batches left out
  std::map<std::pair<int, int>, InFlight> live_;
  DryTraffic sent_;
};

}  // namespace

const RankForecast& Forecast::of_rank(const ParallelConfig& layout, int64_t rank) const {
  const int64_t place = rank / (int64_t{layout.dp} * layout.tp);
  const int64_t of_ep = rank / layout.tp % layout.ep;  // which divides dp
  const bool has_fewer = !with_fewer_experts.empty() && of_ep >= first_with_fewer;
  return (has_fewer ? with_fewer_experts : ranks).at(static_cast<size_t>(place));
}

int64_t Forecast::most_bytes() const {
  int64_t most = 0;
  for (const RankForecast& r : ranks) most = std::max(most, r.memory.total());
  return most;
}

OpWork Forecast::work() const {
  OpWork all;
  for (const RankForecast& r : ranks) {
    all.add(r.rest);
    for (const auto& [action, work] : r.actions) all.add(work);
  }
  return all;
}

int64_t experts_of(Layer& model) {
  int64_t count = 0;
  model.walk([&](Layer& layer) {
    if (const auto* experts = dynamic_cast<const Experts*>(&layer)) count = experts->num_experts();
  });
  return count;
}

namespace {

/// The forecast of the tp rank with the most elements at a place of the other axes.
RankForecast of_fullest(const Json& config, const ParallelConfig& layout, const StepShape& step,
                        RankPlace place, ShapesByRows& shapes) {
  DryRank first(config, layout, step, place, shapes);
  place.tp = first.fullest_tp_rank();
  return place.tp == 0 ? first.run() : DryRank(config, layout, step, place, shapes).run();
}

}  // namespace

Forecast forecast(const Json& config, const ParallelConfig& layout, const StepShape& step) {
  provide_meta_kernels();
  Forecast out;
  const auto model = make_model(config);
  out.first_with_fewer = layout.ep > 1 ? static_cast<int>(experts_of(*model) % layout.ep) : 0;
  ShapesByRows shapes;
  for (int p = 0; p < layout.pp; ++p) {
    out.ranks.push_back(of_fullest(config, layout, step, {.pp = p}, shapes));
    if (out.first_with_fewer == 0) continue;
    const RankPlace last{.pp = p, .dp = layout.ep - 1};  // of those that share out the experts
    out.with_fewer_experts.push_back(of_fullest(config, layout, step, last, shapes));
  }
  out.tokens = step.tokens();
  if (layout.lora) {
    attach_lora(*model, model->sequence(), *layout.lora, layout.compute_type);
  }
  out.flops = model->train_flops_per_token(step.seq_len) * static_cast<double>(out.tokens);
  out.schedule = schedule_of(layout, rows_of(layout, step).size());
  out.idle_share = timeline_of(out.schedule, unit_cost(out.schedule)).idle_share();
  return out;
}

RankProgram rank_program(const Json& config, const ParallelConfig& layout, const StepShape& step,
                         int rank) {
  CLEAVE_CHECK(layout.dp % layout.ep == 0, Code::kShape, "dp ", layout.dp,
               " is not a multiple of ep ", layout.ep, "; choose an ep that divides it");
  provide_meta_kernels();
  RankProgram out;
  out.place = place_of(rank, layout);
  ShapesByRows shapes;
  DryRank dry(config, layout, step, out.place, shapes);
  out.forecast = dry.run();
  out.layers = dry.layers();
  out.parameters = dry.parameters();
  return out;
}

}  // namespace cleave::inline planner
