#pragma once
#include <map>
#include <memory>
#include <utility>

#include "cleave/pipeline/p2p_channel.h"
#include "cleave/pipeline/pipeline_model.h"
#include "cleave/torch_internals/deferred.h"
#include "cleave/torch_internals/graph.h"

namespace cleave::inline pipeline {

/// The inputs of a run, which they must outlive.
struct PipelineWork {
  const std::vector<Layer*>& sequence;
  const Stages& stages;
  const Axis& pp;
  const std::vector<MicroBatch>& micro_batches;
  const PipelineLoss& loss;  ///< empty in an evaluation that keeps outputs
};

/// One rank's part in one run of micro-batches through the stages of a PipelineModel.
class PipelineRun {
 public:
  explicit PipelineRun(const PipelineWork& work);

  /// Does this rank's actions of the schedule, with gradients if it has backwards. Events are
  /// relative to the clock's time `began_s`.
  void execute(const Schedule& schedule, double began_s);

  /// Losses in the order of micro-batches, on every rank.
  [[nodiscard]] PendingLosses losses() const;
  /// Outputs in the order of micro-batches, on the last stage's rank.
  std::vector<DTensor> take_outputs() { return std::move(outputs_); }
  std::vector<TraceEvent> take_events() { return std::move(events_); }

 private:
  /// A received value: a leaf that collects the gradient to send back, undefined where the value
  /// has none, and its placement.
  struct Received {
    Tensor leaf;
    Placement placement;
  };
  /// What forward keeps for backward. Of an output only the graph edge is kept: its memory is
  /// freed once it is sent, unless backward reads it. The layer's value is the first of the inputs
  /// and outputs, named values follow.
  struct InFlight {
    std::vector<Received> inputs;   // none on the first stage
    std::vector<GraphEnd> outputs;  // invalid where nothing needs a gradient
    Tensor seed;                    // the loss's own gradient, on the last stage
    std::shared_ptr<DeferredGradients> deferred;
  };
  class Span;

  void forward(const Action& action);
  void backward(const Action& action);
  void weights(const Action& action);
  /// The stage's first input. Adds the named values that earlier stages made to `context`.
  [[nodiscard]] DTensor input_of(const Action& action, Context& context, InFlight& live);
  /// The value that `maker` sent to the stage, as a leaf.
  [[nodiscard]] DTensor received(const StageMessage& message, const Layer& maker, InFlight& live);
  [[nodiscard]] DTensor output_of(const Action& action, const DTensor& input, Context& context,
                                  InFlight& live);
  /// The values for the next stage: `output`, then the named ones in the order of named_before().
  [[nodiscard]] std::vector<DTensor> outputs_of(const Action& action, const DTensor& output,
                                                const Context& context) const;
  void finish(const Action& action, const std::vector<DTensor>& outputs, InFlight& live);
  /// The layers of earlier stages whose outputs have names, in call order.
  [[nodiscard]] std::vector<const Layer*> named_before(int stage) const;
  void send_sums(StageMessage::Kind kind, const Action& action, int to_stage);
  Tensor receive_sums(StageMessage::Kind kind, const Action& action, int from_stage);
  [[nodiscard]] BalanceLoss* balance(const Action& action) const {
    return micro_batch(action).context.balance.get();
  }
  [[nodiscard]] int rank_of(int stage) const { return stage % work_.pp.size(); }
  [[nodiscard]] bool is_last(int stage) const { return stage + 1 == std::ssize(work_.stages); }
  [[nodiscard]] const MicroBatch& micro_batch(const Action& action) const {
    return work_.micro_batches[static_cast<size_t>(action.micro_batch)];
  }

  PipelineWork work_;
  P2PChannel channel_;
  bool trains_ = false, defers_ = false;
  std::map<std::pair<int, int>, InFlight> live_;  // by stage and micro-batch
  std::vector<Tensor> losses_;                    // by micro-batch, on the last stage's rank
  std::vector<DTensor> outputs_;                  // the same
  std::vector<TraceEvent> events_;
  double began_s_ = 0;
};

}  // namespace cleave::inline pipeline
