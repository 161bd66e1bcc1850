#pragma once
#include <map>
#include <memory>
#include <utility>

#include <torch/csrc/autograd/edge.h>

#include "cleave/layout/deferred.h"
#include "cleave/pipeline/p2p_channel.h"
#include "cleave/pipeline/pipeline_model.h"

namespace cleave {

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

  /// Losses in the order of micro-batches, on every rank. Collective over the axis.
  [[nodiscard]] std::vector<double> losses() const;
  /// Outputs in the order of micro-batches, on the last stage's rank.
  std::vector<DTensor> take_outputs() { return std::move(outputs_); }
  std::vector<TraceEvent> take_events() { return std::move(events_); }

 private:
  /// What forward keeps for backward. Of the output only the graph edge is kept: its memory is
  /// freed once it is sent, unless backward reads it.
  struct InFlight {
    Tensor input;  // a leaf that collects the gradient to send back; undefined on the first stage
    Placement placement;           // of the input
    torch::autograd::Edge output;  // invalid where nothing needs a gradient
    Tensor seed;                   // the loss's own gradient, on the last stage
    std::shared_ptr<DeferredGradients> deferred;
  };
  class Span;

  void forward(const Action& action);
  void backward(const Action& action);
  void weights(const Action& action);
  [[nodiscard]] DTensor input_of(const Action& action, InFlight& live);
  [[nodiscard]] DTensor output_of(const Action& action, const DTensor& input, InFlight& live);
  void finish(const Action& action, const DTensor& output, InFlight& live);
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

}  // namespace cleave
