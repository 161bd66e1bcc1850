#pragma once
#include <memory>
#include <span>
#include <vector>

#include "cleave/checkpoint/save.h"
#include "cleave/mesh/mesh.h"
#include "cleave/planner/layout.h"
#include "cleave/train/step.h"

namespace cleave {

/// What forward and backward of one step gave.
struct PassResult {
  double loss = 0;         ///< this data-parallel rank's part of the global mean
  int64_t num_labels = 0;  ///< in the global batch
};

/// One rank's part of a model that is laid out over a mesh with the axes pp, dp and tp: its stages'
/// weights, cut as the layout says, and a training step's work on them.
class RankModel {
 public:
  /// Lays the model out; it has no memory yet. Throws Error(kShape) for a layout that does not fit.
  /// Collective.
  RankModel(std::unique_ptr<Model> model, const TrainLayout& layout, const Mesh& mesh, World& world,
            const OptimizerOptions& optimizer = {});

  /// The whole model: of layers elsewhere it has names and shapes.
  [[nodiscard]] Model& model() { return *model_; }
  [[nodiscard]] const Model& model() const { return *model_; }
  /// Those of this rank's stages, each once.
  [[nodiscard]] const Parameters& parameters() const { return laid_out_.parameters(); }
  /// The ranks that see the same rows: those of pp and tp at this rank's place on dp.
  [[nodiscard]] const Axis& same_rows() const { return same_rows_; }

  /// Of this rank's parameters.
  [[nodiscard]] Optimizer& optimizer() { return laid_out_.optimizer(); }

  /// To be called when the leaves have got their values: what forward reads follows them.
  /// Collective.
  void leaves_changed() { laid_out_.leaves_changed(); }
  /// A step of the optimizer from complete gradients times `gradient_scale`. Collective.
  void step(double lr, double gradient_scale = 1) { laid_out_.step(lr, gradient_scale); }

  /// Forward and backward of this data-parallel rank's rows, given as micro-batches in the
  /// processor's memory; leaves' gradients are complete then, ready to be clipped and applied.
  /// `seed` and `step` are dropout's; every rank brings as many micro-batches. Backward begins with
  /// `loss_scale`, by which the leaves' gradients are divided at the end. Throws Error(kFormat) for
  /// a batch without labels. Collective.
  PassResult train_pass(std::span<const Batch> rows, uint64_t seed, int64_t step,
                        double loss_scale = 1);
  /// What this data-parallel rank's rows are worth, on all ranks with the same rows. Collective.
  EvalSum eval_pass(std::span<const Batch> rows);
  /// Of all ranks together, each element counted once. Collective.
  [[nodiscard]] GradientNorm gradient_norm() const;

 private:
  /// The batches where the leaves are.
  [[nodiscard]] std::vector<Batch> moved(std::span<const Batch> batches) const;
  [[nodiscard]] std::vector<MicroBatch> inputs_of(std::span<const Batch> batches,
                                                  const Context& shared) const;

  std::unique_ptr<Model> model_;
  LaidOutModel laid_out_;
  Axis same_rows_;
  Axis counted_;  // ranks whose gradients differ: same_rows_, or all where leaves are cut over dp
  Task task_;
};

}  // namespace cleave
