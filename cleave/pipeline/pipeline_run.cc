#include "cleave/pipeline/pipeline_run.h"

#include <array>

#include <ATen/ATen.h>

#include "cleave/base/clock.h"
#include "cleave/kernels/host_copy.h"
#include "cleave/nn/balance_loss.h"
#include "cleave/nn/call_record.h"
#include "cleave/nn/subject.h"
#include "cleave/runtime/step_recorder.h"
#include "cleave/torch_internals/node.h"

namespace cleave::inline pipeline {
namespace {

using MessageKind = StageMessage::Kind;

/// "forward of micro-batch 2, stage 1"
std::string name_of(const Action& action) {
  constexpr std::array kNames{"forward", "backward", "weight gradients"};
  return str(kNames[static_cast<size_t>(action.kind)], " of micro-batch ", action.micro_batch,
             ", stage ", action.stage);
}

}  // namespace

/// Records its lifetime as the time of an action.
class PipelineRun::Span {
 public:
  Span(PipelineRun& run, const Action& action)
      : run_(run), action_(action), begin_s_(monotonic_s()), cpu_s_(thread_cpu_s()) {
    if (recorder_ != nullptr) recorder_->begin(EventKind::kAction, name_of(action));
  }
  ~Span() {
    if (recorder_ != nullptr) recorder_->end();
    run_.events_.push_back({.action = action_,
                            .begin_s = begin_s_ - run_.began_s_,
                            .end_s = monotonic_s() - run_.began_s_,
                            .cpu_s = thread_cpu_s() - cpu_s_});
  }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

 private:
  PipelineRun& run_;
  Action action_;
  double begin_s_, cpu_s_;
  StepRecorder* recorder_ = StepRecorder::active();
};

PipelineRun::PipelineRun(const PipelineWork& work)
    : work_(work), channel_(work.pp, static_cast<int>(work.micro_batches.size())) {
  work.pp.connect_messages();
  if (rank_of(static_cast<int>(work.stages.size()) - 1) != work.pp.rank()) return;
  (work.loss ? losses_.resize(work.micro_batches.size())
             : outputs_.resize(work.micro_batches.size()));
}

void PipelineRun::execute(const Schedule& schedule, double began_s) {
  began_s_ = began_s;
  trains_ = schedule.has(Action::Kind::kBackward);
  defers_ = schedule.has(Action::Kind::kWeight);
  const at::AutoGradMode grad_mode(trains_);
  for (const Action& action : schedule.ranks[static_cast<size_t>(work_.pp.rank())]) {
    switch (action.kind) {
      case Action::Kind::kForward:
        forward(action);
        break;
      case Action::Kind::kBackward:
        backward(action);
        break;
      case Action::Kind::kWeight:
        weights(action);
        break;
    }
  }
}

std::vector<const Layer*> PipelineRun::named_before(int stage) const {
  std::vector<const Layer*> out;
  const auto end = static_cast<size_t>(work_.stages[static_cast<size_t>(stage)].begin);
  for (size_t i = 0; i < end; ++i) {
    if (!work_.sequence[i]->output_name().empty()) out.push_back(work_.sequence[i]);
  }
  return out;
}

void PipelineRun::send_sums(MessageKind kind, const Action& action, int to_stage) {
  const BalanceLoss* loss = balance(action);
  if (loss == nullptr) return;
  channel_.send({.kind = kind, .stage = to_stage, .micro_batch = action.micro_batch},
                DTensor(loss->sums(), micro_batch(action).input.axis(), Replicate{}));
}

Tensor PipelineRun::receive_sums(MessageKind kind, const Action& action, int from_stage) {
  return channel_
      .receive({.kind = kind, .stage = action.stage, .micro_batch = action.micro_batch},
               rank_of(from_stage), micro_batch(action).input)
      .local();
}

DTensor PipelineRun::received(const StageMessage& message, const Layer& maker, InFlight& live) {
  const DTensor& like = work_.micro_batches[static_cast<size_t>(message.micro_batch)].input;
  const DTensor value = channel_.receive(message, rank_of(message.stage - 1), like);
  const Tensor leaf = value.local().detach();
  const bool has_gradient = trains_ && leaf.is_floating_point();
  live.inputs.push_back(
      {.leaf = has_gradient ? leaf.requires_grad_() : Tensor(), .placement = value.placement()});
  return value.with(leaf).made_by(maker_name(maker.path()));
}

DTensor PipelineRun::input_of(const Action& action, Context& context, InFlight& live) {
  if (action.stage == 0) return micro_batch(action).input;
  StageMessage message{
      .kind = MessageKind::kActivation, .stage = action.stage, .micro_batch = action.micro_batch};
  const auto begin = static_cast<size_t>(work_.stages[static_cast<size_t>(action.stage)].begin);
  DTensor first = received(message, *work_.sequence[begin - 1], live);
  for (const Layer* maker : named_before(action.stage)) {
    ++message.value;
    context.values = context.values.with(maker->output_name(), received(message, *maker, live));
  }
  if (BalanceLoss* loss = balance(action)) {
    loss->resume(receive_sums(MessageKind::kSums, action, action.stage - 1));
  }
  return first;
}

DTensor PipelineRun::output_of(const Action& action, const DTensor& input, Context& context,
                               InFlight& live) {
  if (defers_) {
    live.deferred = std::make_shared<DeferredGradients>();
    context.deferred = live.deferred;
  }
  const Range& layers = work_.stages[static_cast<size_t>(action.stage)];
  const std::span sequence(work_.sequence);
  CallRecord calls;  // as if one layer called the whole sequence
  for (const Layer* layer : sequence.first(static_cast<size_t>(layers.begin))) {
    calls.count_call(*layer);
  }
  return call_in_order(
      sequence.subspan(static_cast<size_t>(layers.begin), static_cast<size_t>(layers.size())),
      input, context);
}

std::vector<DTensor> PipelineRun::outputs_of(const Action& action, const DTensor& output,
                                             const Context& context) const {
  std::vector<DTensor> out{output};
  if (is_last(action.stage)) return out;
  for (const Layer* maker : named_before(action.stage + 1)) {
    out.push_back(context.values.at(maker->output_name()));
    CLEAVE_CHECK(out.back().local().is_floating_point(), Code::kShape, layer_name(maker->path()),
                 ": its output '", maker->output_name(), "' is of ",
                 out.back().local().scalar_type(), " and cannot cross to the next pipeline stage; ",
                 "only floating-point outputs can have names in a pipeline");
  }
  return out;
}

void PipelineRun::forward(const Action& action) {
  InFlight live;
  Context context = micro_batch(action).context;
  const DTensor input = input_of(action, context, live);
  std::vector<DTensor> outputs;
  {
    const Span span(*this, action);
    const DTensor output = output_of(action, input, context, live);
    outputs = outputs_of(action, output, context);
    finish(action, outputs, live);
  }
  if (!is_last(action.stage)) {
    StageMessage message{.kind = MessageKind::kActivation,
                         .stage = action.stage + 1,
                         .micro_batch = action.micro_batch};
    for (const DTensor& output : outputs) {
      channel_.send(message, output);
      ++message.value;
    }
    send_sums(MessageKind::kSums, action, action.stage + 1);
  }
  if (trains_) live_.emplace(std::pair(action.stage, action.micro_batch), std::move(live));
}

// Ends a stage's forward: computes the loss on the last stage, and keeps where backward will start.
void PipelineRun::finish(const Action& action, const std::vector<DTensor>& outputs,
                         InFlight& live) {
  const auto m = static_cast<size_t>(action.micro_batch);
  variable_list ends;
  for (const DTensor& output : outputs) ends.push_back(output.local());
  if (is_last(action.stage)) {
    if (BalanceLoss* loss = balance(action)) loss->close(loss->sums());
    if (!work_.loss) {
      outputs_[m] = outputs.front();
      return;
    }
    Tensor& end = ends.front();
    end = work_.loss(outputs.front(), m);
    CLEAVE_CHECK(end.defined() && end.numel() == 1, Code::kUsage,
                 "the loss function of the pipeline returned ", end.defined() ? end.numel() : 0,
                 " numbers for a micro-batch; it must return one");
    losses_[m] = end.detach();
    if (trains_) live.seed = at::ones_like(end.detach());
  }
  if (!trains_) return;
  for (const Tensor& end : ends) {
    live.outputs.push_back(end.requires_grad() ? GraphEnd(end) : GraphEnd());
  }
}

void PipelineRun::backward(const Action& action) {
  InFlight& live = live_.at({action.stage, action.micro_batch});
  const DTensor& like = micro_batch(action).input;
  StageMessage message{
      .kind = MessageKind::kGradient, .stage = action.stage, .micro_batch = action.micro_batch};
  std::vector<GraphEnd> ends;
  variable_list end_grads;
  for (const GraphEnd& output : live.outputs) {
    Tensor grad = live.seed;
    if (!is_last(action.stage)) {
      grad = channel_.receive(message, rank_of(action.stage + 1), like).local();
      ++message.value;
    }
    if (!output.is_valid()) continue;
    ends.push_back(output);
    end_grads.push_back(std::move(grad));
  }
  if (BalanceLoss* loss = balance(action); loss != nullptr && !is_last(action.stage)) {
    loss->close(receive_sums(MessageKind::kAllSums, action, action.stage + 1));
  }
  variable_list input_grads;
  {
    const Span span(*this, action);
    backward_from(ends, end_grads);
    for (const auto& [leaf, placement] : live.inputs) {
      Tensor grad = leaf.defined() ? leaf.grad() : Tensor();
      if (leaf.defined() && !grad.defined()) grad = at::zeros_like(leaf);
      input_grads.push_back(std::move(grad));
    }
  }
  message = {
      .kind = MessageKind::kGradient, .stage = action.stage - 1, .micro_batch = action.micro_batch};
  for (size_t i = 0; i < input_grads.size(); ++i, ++message.value) {
    if (!input_grads[i].defined()) continue;
    channel_.send(message, DTensor(input_grads[i], like.axis(), live.inputs[i].placement));
  }
  if (action.stage > 0) send_sums(MessageKind::kAllSums, action, action.stage - 1);
  // Deferred weight gradients keep their own activations.
  std::shared_ptr<DeferredGradients> deferred = std::move(live.deferred);
  live = InFlight{};
  live.deferred = std::move(deferred);
  if (!defers_) live_.erase({action.stage, action.micro_batch});
}

void PipelineRun::weights(const Action& action) {
  const Span span(*this, action);
  live_.at({action.stage, action.micro_batch}).deferred->run();
  live_.erase({action.stage, action.micro_batch});
}

PendingLosses PipelineRun::losses() const {
  const auto count = static_cast<int64_t>(work_.micro_batches.size());
  std::vector<Tensor> flat;
  flat.reserve(losses_.size());
  for (const Tensor& loss : losses_) flat.push_back(loss.reshape({}));
  std::shared_ptr<HostCopy> copy;
  if (!flat.empty()) copy = std::make_shared<HostCopy>(at::stack(flat));
  return [pp = work_.pp, count, copy] {
    Tensor all = at::zeros({count}, at::kDouble);
    if (copy) all.copy_(copy->wait());
    pp.broadcast_(all, pp.size() - 1, "losses of a pipeline");
    const auto* values = all.const_data_ptr<double>();
    return std::vector<double>(values, values + count);
  };
}

}  // namespace cleave::inline pipeline
