#pragma once
#include <functional>
#include <vector>

#include "cleave/nn/gradient_state.h"
#include "cleave/nn/layer.h"
#include "cleave/pipeline/stages.h"
#include "cleave/pipeline/trace.h"

namespace cleave::inline pipeline {

/// A part of the batch that passes the pipeline at a time. Every rank gets all micro-batches.
struct MicroBatch {
  /// The input of the first stage, e.g. ids [B, T], on the tensor-parallel axis. With several
  /// pipeline ranks, neither the input nor a value of the context may need a gradient.
  DTensor input;
  Context context{};  ///< positions, masks, dropout counters and further inputs, for all stages
};

/// Maps the last stage's output to the scalar loss that backward starts from. Gradients of
/// micro-batches are added, so a mean over the global batch must divide by the global count here.
using PipelineLoss = std::function<Tensor(const DTensor& output, size_t micro_batch)>;

/// Returns the losses of a run, in the order of micro-batches, on every rank; waits until a device
/// has computed them. Call it once. Collective over the pipeline axis.
using PendingLosses = std::function<std::vector<double>()>;

struct PipelineOptions {
  ScheduleKind schedule = ScheduleKind::k1F1B;
  int stages_per_rank = 1;  ///< virtual stages
  Stages stages{};          ///< empty: even_stages over the model's blocks
  bool trace = false;       ///< record when each action of a run begins and ends
};

class PipelineRun;

/// A model's Layers, divided into stages over the ranks of a pipeline axis: stage s is on rank
/// s % size.
///
/// Every rank builds the whole model without memory, and each Parameter records whether this rank
/// owns it. Then materialize() or a loader allocates only the parameters of local_layers(). Of a
/// parameter that several ranks use, the rank of the first stage is the owner, which writes and
/// counts it. Named outputs of layers (Layer::set_output_name) reach all later stages, and their
/// gradients come back summed. Layers are called through their module boundary, so styles and wraps
/// work as without a pipeline. Backward adds the gradients of micro-batches, in their order, on the
/// leaves of local parameters. A GradientSync with this pipeline completes them; the norm of
/// clip_grad_norm is that of all stages.
class PipelineModel {
 public:
  /// `sequence`: the model's Layers in call order; they must outlive this. Throws Error(kShape) if
  /// they cannot be divided into pp x stages_per_rank stages, Error(kUsage) for 1f1b with several
  /// stages a rank.
  PipelineModel(std::vector<Layer*> sequence, const Axis& pp, PipelineOptions options = {});

  /// This rank's Layers by stage; and in one list.
  [[nodiscard]] std::vector<std::vector<Layer*>> local_stages() const;
  [[nodiscard]] const std::vector<Layer*>& local_layers() const { return local_layers_; }
  /// Their parameters, each once.
  [[nodiscard]] const Parameters& parameters() const { return parameters_; }
  /// The parameters that another rank's stage uses as well (an embedding tied to the head).
  [[nodiscard]] const Parameters& tied_parameters() const { return tied_; }
  /// All stages, also those of other ranks.
  [[nodiscard]] const Stages& stages() const { return options_.stages; }
  [[nodiscard]] bool has_first_stage() const { return pp_.rank() == 0; }
  [[nodiscard]] bool has_last_stage() const { return pp_.rank() == pp_.size() - 1; }
  [[nodiscard]] const Axis& axis() const { return pp_; }
  /// Whether backward ends without the gradients of weights, which come later (zero-bubble).
  [[nodiscard]] bool defers_weight_gradients() const {
    return options_.schedule == ScheduleKind::kZeroBubble;
  }

  /// Forward and backward of all micro-batches, of any shapes. `loss` is called on the last stage.
  /// Returns the losses in the order of micro-batches, on every rank; their sum is the loss of the
  /// batch. Collective over the axis.
  std::vector<double> run_train(const std::vector<MicroBatch>& micro_batches,
                                const PipelineLoss& loss);
  /// The same without waiting for the losses, so that a device gets its next work meanwhile.
  PendingLosses start_train(const std::vector<MicroBatch>& micro_batches, const PipelineLoss& loss);

  /// Forward only, without gradients. Returns the outputs in the order of micro-batches on the last
  /// stage's rank, nothing elsewhere.
  std::vector<DTensor> run_eval(const std::vector<MicroBatch>& micro_batches);
  /// Forward only, with a loss; outputs are not kept. Returns the losses on every rank.
  std::vector<double> run_eval(const std::vector<MicroBatch>& micro_batches,
                               const PipelineLoss& loss);

  /// Sums the gradients of tied parameters over the ranks that use them; each rank gets the same
  /// bits. GradientSync calls it after a step's other sums; a second call in a step changes
  /// nothing. Collective over those ranks.
  void sum_tied_gradients() const;

  /// The times of all ranks' actions in the last run. Collective over the axis; empty lists without
  /// PipelineOptions::trace.
  [[nodiscard]] Trace trace() const { return gather_trace(events_, pp_); }

 private:
  void find_parameters();
  [[nodiscard]] ScheduleShape shape_of(size_t num_micro_batches) const;
  void run(PipelineRun& run, const Schedule& schedule);

  std::vector<Layer*> sequence_;
  Axis pp_;
  PipelineOptions options_;
  std::vector<Layer*> local_layers_;
  Parameters parameters_, tied_;
  std::vector<std::vector<int>> tied_ranks_;  // for each of tied_, in the order of stages
  std::vector<TraceEvent> events_;
};

}  // namespace cleave::inline pipeline
