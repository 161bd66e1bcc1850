#pragma once
#include <functional>
#include <vector>

#include "cleave/parallel/gradients.h"
#include "cleave/pipeline/stages.h"
#include "cleave/pipeline/trace.h"

namespace cleave {

/// A part of the batch that goes through the pipeline by itself. Every rank is given it whole.
struct MicroBatch {
  DTensor input;      ///< of the first stage, e.g. ids [B, T]; its axis is tensor parallelism's
  Context context{};  ///< positions, masks, dropout's counters: of this micro-batch
};

/// The last stage's output to the number that backward begins with. Gradients of micro-batches are
/// added, so a mean over the global batch is divided by the global count here.
using PipelineLoss = std::function<Tensor(const DTensor& output, size_t micro_batch)>;

struct PipelineOptions {
  ScheduleKind schedule = ScheduleKind::k1F1B;
  int stages_per_rank = 1;  ///< virtual stages
  Stages stages{};          ///< empty: even_stages over the model's blocks
  bool trace = false;       ///< keep when each action of a run was done
};

class PipelineRun;

/// A model's list of Layers cut over the ranks of a pipeline axis: stage s is on rank s % size.
///
/// Every rank builds the whole model without memory, and each Parameter is told its home: memory is
/// then given to those of local_layers() alone, by materialize() or a loader; of those that several
/// ranks use, the rank of the first stage writes and counts them. Layers are called through their
/// door, so styles and wraps work as without a pipeline. Backward leaves gradients on the leaves of
/// local parameters, added over micro-batches in their order; then come finish_gradients,
/// sum_gradients, sum_tied_gradients and clip_grad_norm, whose norm is that of all stages: each
/// parameter is counted where it is at home.
class PipelineModel {
 public:
  /// `sequence`: the model's Layers in the order in which they are called; they outlive this.
  /// Throws Error(kShape) when they cannot be cut into pp x stages_per_rank stages, Error(kUsage)
  /// for 1f1b with several stages a rank.
  PipelineModel(std::vector<Layer*> sequence, const Axis& pp, PipelineOptions options = {});

  /// This rank's Layers of each of its stages, and of all one after the other.
  [[nodiscard]] std::vector<std::vector<Layer*>> local_stages() const;
  [[nodiscard]] const std::vector<Layer*>& local_layers() const { return local_layers_; }
  /// Their parameters, each once.
  [[nodiscard]] const Parameters& parameters() const { return parameters_; }
  /// Those that another rank's stage uses as well (an embedding tied to the head).
  [[nodiscard]] const Parameters& tied_parameters() const { return tied_; }
  /// All stages, also those of other ranks.
  [[nodiscard]] const Stages& stages() const { return options_.stages; }
  [[nodiscard]] bool has_first_stage() const { return pp_.rank() == 0; }
  [[nodiscard]] bool has_last_stage() const { return pp_.rank() == pp_.size() - 1; }
  [[nodiscard]] const Axis& axis() const { return pp_; }

  /// Forward and backward of all micro-batches, of any shapes. `loss` is called on the last stage.
  /// Returns the losses in the order of micro-batches, on every rank; their sum is the loss of the
  /// batch. Collective over the axis.
  std::vector<double> run_train(const std::vector<MicroBatch>& micro_batches,
                                const PipelineLoss& loss);

  /// Forward alone, without gradients. On the last stage's rank the outputs in the order of
  /// micro-batches, elsewhere nothing.
  std::vector<DTensor> run_eval(const std::vector<MicroBatch>& micro_batches);
  /// The same for a loss, without keeping outputs: returns the losses on every rank.
  std::vector<double> run_eval(const std::vector<MicroBatch>& micro_batches,
                               const PipelineLoss& loss);

  /// Makes the gradients of tied parameters the sums over the ranks that use them: the same bits
  /// on each. After a step's other reductions; a second call in a step changes nothing. Collective
  /// over those ranks.
  void sum_tied_gradients() const;

  /// When all ranks did what in the last run. Collective over the axis; empty lists without
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
  std::vector<std::vector<int>> tied_ranks_;  // beside tied_: in the order of their stages
  std::vector<TraceEvent> events_;
};

}  // namespace cleave
