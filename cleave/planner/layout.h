#pragma once
#include <memory>
#include <string>

#include "cleave/model/model.h"
#include "cleave/optim/optimizer.h"
#include "cleave/parallel/data_parallel.h"
#include "cleave/pipeline/pipeline_model.h"
#include "cleave/planner/options.h"

namespace cleave {

/// How leaves, gradients and moments lie over the data-parallel axis.
enum class DataSharding : uint8_t { kNone, kZero1, kFsdp };

/// What is computed again in backward instead of kept: nothing, whole blocks, or attention's scores
/// and probabilities.
enum class RecomputeKind : uint8_t { kNone, kFull, kSelective };

/// How a model is spread over ranks.
struct TrainLayout {
  int pp = 1, dp = 1, tp = 1;  ///< sizes of the mesh's axes, outermost first
  int stages_per_rank = 1;     ///< virtual pipeline
  ScheduleKind schedule = ScheduleKind::k1F1B;
  Plan plan{};                     ///< of tensor parallelism
  bool sequence_parallel = false;  ///< the plan cuts sequences between split parts
  DataSharding sharding = DataSharding::kNone;
  RecomputeKind recompute = RecomputeKind::kNone;
  at::ScalarType compute_type = at::kFloat;  ///< of forward and backward

  [[nodiscard]] int num_ranks() const { return pp * dp * tp; }
  /// Of masters, gradients and moments.
  [[nodiscard]] at::ScalarType leaf_type() const {
    return compute_type == at::kDouble ? at::kDouble : at::kFloat;
  }
  /// "tp=2 x pp=2 x dp=1, 1f1b, sequence parallel, ZeRO-1"; a pp of 1 is left out.
  [[nodiscard]] std::string describe() const;
};

/// What flags say, checked against each other; `world_size` is that of a launcher, 0 without one.
/// The plan is the model's or the file's. Throws Error(kUsage), Error(kShape) for sizes that do not
/// go with the world.
TrainLayout layout_of(const LayoutOptions& options, const Model& model, at::ScalarType compute_type,
                      int world_size);

/// A warning where ranks of one tp axis are on several hosts, each with `ranks_of_host` ranks:
/// every layer's sums would cross the network. Empty where all is well.
std::string warning_of_hosts(const TrainLayout& layout, int ranks_of_host);

/// Rows of a data-parallel rank that go forward at once where nobody says: all; with a pipeline a
/// part that gives every rank four micro-batches.
int64_t default_micro_batch_size(int64_t batch_size, const TrainLayout& layout);

/// The axes that a model is spread over: dry ones to plan, or those of a mesh.
struct LayoutAxes {
  Axis pp, dp, tp;
};

/// Axes without peers for the rank at place `pp` of the pipeline and the first place of the others.
LayoutAxes dry_axes(const TrainLayout& layout, int pp = 0);

/// Lays `model` out on dry axes, to see whether and how it can be. Throws as LaidOutModel does.
void try_layout(Model& model, const TrainLayout& layout);

/// A model on its axes: parameters cut, stages chosen, wraps put on, and its optimizer. It has no
/// memory yet; the model outlives this.
class LaidOutModel {
 public:
  /// Throws Error(kShape) for a layout that does not fit the model, naming the sizes that do.
  LaidOutModel(Model& model, const TrainLayout& layout, LayoutAxes axes,
               const OptimizerOptions& optimizer = {});

  /// Its stages of the pipeline; one of all layers where there is none.
  [[nodiscard]] PipelineModel& pipeline() { return *pipeline_; }
  /// Those of this rank's stages, each once.
  [[nodiscard]] const Parameters& parameters() const { return pipeline_->parameters(); }
  [[nodiscard]] const LayoutAxes& axes() const { return axes_; }
  [[nodiscard]] const TrainLayout& layout() const { return layout_; }

  /// Of this rank's parameters: a Zero1Optimizer with ZeRO-1.
  [[nodiscard]] Optimizer& optimizer() { return *optimizer_; }

  /// To be called when the leaves have got their values: what forward reads follows them.
  /// Collective.
  void leaves_changed();
  /// Before the first backward of a step of so many micro-batches.
  void begin_gradients(size_t num_micro_batches);
  /// After the backward of a step's last micro-batch: leaves' gradients are complete. Collective.
  void finish_gradients();
  /// A step of the optimizer from complete gradients times `gradient_scale`, and what forward reads
  /// follows the leaves. Collective.
  void step(double lr, double gradient_scale = 1);

 private:
  void put_on_wraps(Model& model);
  void make_optimizer(const OptimizerOptions& options);

  TrainLayout layout_;
  LayoutAxes axes_;
  std::unique_ptr<PipelineModel> pipeline_;
  std::shared_ptr<DataParallel> data_parallel_;  // without FSDP
  std::unique_ptr<Optimizer> optimizer_;
};

}  // namespace cleave
