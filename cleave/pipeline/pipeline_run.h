#pragma once
#include <map>
#include <memory>
#include <utility>

#include <torch/csrc/autograd/edge.h>

#include "cleave/layout/deferred.h"
#include "cleave/pipeline/pipeline_model.h"
#include "cleave/pipeline/p2p_channel.h"

namespace cleave {

/// What a run works on; all of it outlives the run.
struct PipelineWork {
  const std::vector<Layer*>& sequence;
  const Stages& stages;
  const Axis& pp;
  const std::vector<MicroBatch>& micro_batches;
  const PipelineLoss& loss;  ///< may be empty in an evaluation: outputs are kept
};

/// One rank's part in one run of micro-batches through the stages of a PipelineModel.
class PipelineRun {
 public:
  explicit PipelineRun(const PipelineWork& work);

  /// Does what the schedule has for this rank, with gradients when it has backwards. `began_s`: the
  /// clock's time from which events count.
  void execute(const Schedule& schedule, double began_s);

  /// Losses in the order of micro-batches, on every rank. Collective over the axis.
  [[nodiscard]] std::vector<double> losses() const;
  /// Outputs in the order of micro-batches, on the last stage's rank.
  std::vector<DTensor> take_outputs() { return std::move(outputs_); }
  std::vector<TraceEvent> take_events() { return std::move(events_); }

 private:
  /// What forward leaves for backward. The output itself is not kept, its place in autograd's graph
  /// will do: its memory goes once it is sent, unless backward reads it.
  struct Live {
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
  [[nodiscard]] DTensor input_of(const Action& action, Live& live);
  [[nodiscard]] DTensor output_of(const Action& action, const DTensor& input, Live& live);
  void finish(const Action& action, const DTensor& output, Live& live);
  [[nodiscard]] int rank_of(int stage) const { return stage % work_.pp.size(); }
  [[nodiscard]] bool is_last(int stage) const { return stage + 1 == std::ssize(work_.stages); }
  [[nodiscard]] const MicroBatch& micro_batch(const Action& action) const {
    return work_.micro_batches[static_cast<size_t>(action.micro_batch)];
  }

  PipelineWork work_;
  P2PChannel link_;
  bool trains_ = false, defers_ = false;
  std::map<std::pair<int, int>, Live> live_;  // by stage and micro-batch
  std::vector<Tensor> losses_;                // by micro-batch, on the last stage's rank
  std::vector<DTensor> outputs_;              // likewise
  std::vector<TraceEvent> events_;
  double began_s_ = 0;
};

}  // namespace cleave
