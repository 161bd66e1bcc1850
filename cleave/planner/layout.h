#pragma once
#include <memory>
#include <string>

#include "cleave/model/model.h"
#include "cleave/optim/optimizer.h"
#include "cleave/parallel/data_parallel.h"
#include "cleave/pipeline/pipeline_model.h"
#include "cleave/planner/options.h"

namespace cleave {

/// What is sharded over the data-parallel axis: nothing, master weights and moments (ZeRO-1), or
/// also weights and gradients (FSDP).
enum class DataSharding : uint8_t { kNone, kZero1, kFsdp };

/// What backward recomputes instead of keeping: nothing, whole blocks, or attention's scores and
/// probabilities.
enum class RecomputeKind : uint8_t { kNone, kFull, kSelective };

/// How a model is distributed over ranks.
struct ParallelConfig {
  int pp = 1, dp = 1, tp = 1;  ///< sizes of the mesh's axes, outermost first
  int stages_per_rank = 1;     ///< virtual pipeline
  ScheduleKind schedule = ScheduleKind::k1F1B;
  Plan plan{};                     ///< of tensor parallelism
  bool sequence_parallel = false;  ///< the plan shards sequences between split layers
  DataSharding sharding = DataSharding::kNone;
  RecomputeKind recompute = RecomputeKind::kNone;
  at::ScalarType compute_type = at::kFloat;  ///< of forward and backward

  [[nodiscard]] int num_ranks() const { return pp * dp * tp; }
  /// Type of master weights, gradients and moments.
  [[nodiscard]] at::ScalarType leaf_type() const {
    return compute_type == at::kDouble ? at::kDouble : at::kFloat;
  }
  /// "tp=2 x pp=2 x dp=1, 1f1b, sequence parallel, ZeRO-1"; a pp of 1 is left out.
  [[nodiscard]] std::string describe() const;
};

/// The configuration that flags give. `world_size` is that of a launcher, 0 without one. The plan
/// is the model's or the file's. Throws Error(kUsage) for flags that exclude each other,
/// Error(kShape) for sizes that do not fit the world.
ParallelConfig make_parallel_config(const LayoutOptions& options, const Model& model,
                                    at::ScalarType compute_type, int world_size);

/// A warning if the ranks of a tp axis are on several hosts, each with `ranks_of_host` ranks: every
/// layer's sums would cross the network. Otherwise empty.
std::string cross_host_warning(const ParallelConfig& layout, int ranks_of_host);

/// The default micro-batch size of a data-parallel rank: all of its sequences; with a pipeline, so
/// many that there are four micro-batches per pipeline rank.
int64_t default_micro_batch_size(int64_t batch_size, const ParallelConfig& layout);

/// The axes that a model is distributed over: those of a mesh, or dry ones for planning.
struct LayoutAxes {
  Axis pp, dp, tp;
};

/// Axes without peers for the rank at place `pp` of the pipeline and the first place of the others.
LayoutAxes dry_axes(const ParallelConfig& layout, int pp = 0);

/// Parallelizes `model` on dry axes, to check that it is possible. Throws as ParallelizedModel
/// does.
void try_layout(Model& model, const ParallelConfig& layout);

/// A model with its parameters sharded, its stages chosen and its wraps attached, and its
/// optimizer. It has no memory yet; the model must outlive this.
class ParallelizedModel {
 public:
  /// Throws Error(kShape) for a layout that does not fit the model, naming the sizes that do.
  ParallelizedModel(Model& model, const ParallelConfig& layout, LayoutAxes axes,
                    const OptimizerOptions& optimizer = {});

  /// The pipeline; without one, a single stage of all layers.
  [[nodiscard]] PipelineModel& pipeline() { return *pipeline_; }
  /// The parameters of this rank's stages, each once.
  [[nodiscard]] const Parameters& parameters() const { return pipeline_->parameters(); }
  [[nodiscard]] const LayoutAxes& axes() const { return axes_; }
  [[nodiscard]] const ParallelConfig& layout() const { return layout_; }

  /// The optimizer of this rank's parameters: with ZeRO-1 a Zero1Optimizer.
  [[nodiscard]] Optimizer& optimizer() { return *optimizer_; }

  /// Updates the weights that forward reads from the leaves. Call it after the leaves are filled.
  /// Collective.
  void refresh_weights();
  /// Call it before the first backward of a step of `num_micro_batches`.
  void begin_step(size_t num_micro_batches);
  /// Completes the leaves' gradients. Call it after the backward of a step's last micro-batch.
  /// Collective.
  void finish_gradients();
  /// A step of the optimizer from complete gradients times `gradient_scale`. Also updates the
  /// weights that forward reads. Collective.
  void step(double lr, double gradient_scale = 1);

 private:
  void attach_wraps(Model& model);
  void make_optimizer(const OptimizerOptions& options);

  ParallelConfig layout_;
  LayoutAxes axes_;
  std::unique_ptr<PipelineModel> pipeline_;
  std::shared_ptr<DataParallel> data_parallel_;  // without FSDP
  std::unique_ptr<Optimizer> optimizer_;
};

}  // namespace cleave
