#include "cleave/pipeline/pipeline_run.h"

#include <ctime>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

#include "cleave/base/clock.h"
#include "cleave/nn/balance_loss.h"

namespace cleave {
namespace {

using MessageKind = StageMessage::Kind;

double thread_cpu_s() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

}  // namespace

/// Records its lifetime as the time of an action.
class PipelineRun::Span {
 public:
  Span(PipelineRun& run, const Action& action)
      : run_(run), action_(action), begin_s_(monotonic_s()), cpu_s_(thread_cpu_s()) {}
  ~Span() {
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
};

PipelineRun::PipelineRun(const PipelineWork& work)
    : work_(work), channel_(work.pp, static_cast<int>(work.micro_batches.size())) {
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

DTensor PipelineRun::input_of(const Action& action, InFlight& live) {
  const DTensor& first = micro_batch(action).input;
  if (action.stage == 0) return first;
  const DTensor received = channel_.receive(
      {.kind = MessageKind::kActivation, .stage = action.stage, .micro_batch = action.micro_batch},
      rank_of(action.stage - 1), first);
  if (BalanceLoss* loss = balance(action)) {
    loss->resume(receive_sums(MessageKind::kSums, action, action.stage - 1));
  }
  const Tensor leaf = received.local().detach();
  if (trains_ && leaf.is_floating_point()) {
    live.input = leaf.requires_grad_();
    live.placement = received.placement();
  }
  const auto begin = static_cast<size_t>(work_.stages[static_cast<size_t>(action.stage)].begin);
  return received.with(leaf).made_by(maker_name(work_.sequence[begin - 1]->path()));
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

DTensor PipelineRun::output_of(const Action& action, const DTensor& input, InFlight& live) {
  Context context = micro_batch(action).context;
  if (defers_) {
    live.deferred = std::make_shared<DeferredGradients>();
    context.deferred = live.deferred;
  }
  DTensor x = input;
  const Range& layers = work_.stages[static_cast<size_t>(action.stage)];
  for (int64_t i = layers.begin; i < layers.end; ++i) {
    x = (*work_.sequence[static_cast<size_t>(i)])(x, context);
  }
  return x;
}

void PipelineRun::forward(const Action& action) {
  InFlight live;
  const DTensor input = input_of(action, live);
  DTensor output;
  {
    const Span span(*this, action);
    output = output_of(action, input, live);
    finish(action, output, live);
  }
  if (!is_last(action.stage)) {
    channel_.send({.kind = MessageKind::kActivation,
                   .stage = action.stage + 1,
                   .micro_batch = action.micro_batch},
                  output);
    send_sums(MessageKind::kSums, action, action.stage + 1);
  }
  if (trains_) live_.emplace(std::pair(action.stage, action.micro_batch), std::move(live));
}

// Ends a stage's forward: computes the loss on the last stage, and keeps where backward will start.
void PipelineRun::finish(const Action& action, const DTensor& output, InFlight& live) {
  const auto m = static_cast<size_t>(action.micro_batch);
  Tensor end = output.local();
  if (is_last(action.stage)) {
    if (BalanceLoss* loss = balance(action)) loss->close(loss->sums());
    if (!work_.loss) {
      outputs_[m] = output;
      return;
    }
    end = work_.loss(output, m);
    CLEAVE_CHECK(end.defined() && end.numel() == 1, Code::kUsage,
                 "the loss of a pipeline's micro-batch is ", end.defined() ? end.numel() : 0,
                 " numbers; it must be one");
    losses_[m] = end.detach();
    if (trains_) live.seed = at::ones_like(end.detach());
  }
  if (trains_ && end.requires_grad()) live.output = torch::autograd::impl::gradient_edge(end);
}

void PipelineRun::backward(const Action& action) {
  InFlight& live = live_.at({action.stage, action.micro_batch});
  const DTensor& like = micro_batch(action).input;
  Tensor grad = live.seed;
  if (!is_last(action.stage)) {
    grad = channel_
               .receive({.kind = MessageKind::kGradient,
                         .stage = action.stage,
                         .micro_batch = action.micro_batch},
                        rank_of(action.stage + 1), like)
               .local();
    if (BalanceLoss* loss = balance(action)) {
      loss->close(receive_sums(MessageKind::kAllSums, action, action.stage + 1));
    }
  }
  Tensor input_grad;
  {
    const Span span(*this, action);
    if (live.output.is_valid()) {
      torch::autograd::Engine::get_default_engine().execute(
          {live.output}, {grad}, /*keep_graph=*/false, /*create_graph=*/false,
          /*accumulate_grad=*/true, /*outputs=*/{});
    }
    if (live.input.defined()) {
      input_grad = live.input.grad().defined() ? live.input.grad() : at::zeros_like(live.input);
    }
  }
  if (action.stage > 0 && input_grad.defined()) {
    channel_.send({.kind = MessageKind::kGradient,
                   .stage = action.stage - 1,
                   .micro_batch = action.micro_batch},
                  DTensor(input_grad, like.axis(), live.placement));
    send_sums(MessageKind::kAllSums, action, action.stage - 1);
  }
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

std::vector<double> PipelineRun::losses() const {
  const auto count = static_cast<int64_t>(work_.micro_batches.size());
  Tensor all = at::zeros({count}, at::kDouble);
  for (size_t m = 0; m < losses_.size(); ++m) {
    all[static_cast<int64_t>(m)].copy_(losses_[m].reshape({}));
  }
  work_.pp.broadcast_(all, work_.pp.size() - 1, "losses of a pipeline");
  const auto* values = all.const_data_ptr<double>();
  return {values, values + count};
}

}  // namespace cleave
