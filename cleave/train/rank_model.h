#pragma once
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "cleave/checkpoint/save.h"
#include "cleave/mesh/mesh.h"
#include "cleave/parallel/parallelize.h"
#include "cleave/train/step.h"

namespace cleave::inline train {

/// The results of forward and backward of one step.
struct PassResult {
  double loss = 0;  ///< this data-parallel rank's summand of the global mean; includes aux_loss
  /// In the global batch; pairs for preferences. With none, there was no forward or backward.
  int64_t num_labels = 0;
  GradientNorm norm{};  ///< of all gradients; replicated elements count once
  // Preferences: this data-parallel rank's summands of the global means.
  double reward_margin = 0;
  double reward_accuracy = 0;  ///< of pairs whose chosen reward is the larger one
  /// This data-parallel rank's summand of the mean auxiliary loss, before its coefficient; empty if
  /// the model has none.
  std::optional<double> aux_loss{};
};

/// One rank's part of a model that is parallelized over a mesh with the axes pp, dp and tp: the
/// shards of its stages' weights, and the passes of a training step.
class RankModel {
 public:
  /// Parallelizes the model, without allocating weights. Throws Error(kShape) for an invalid
  /// layout. Collective.
  RankModel(std::unique_ptr<Model> model, const ParallelConfig& layout, const Mesh& mesh,
            World& world, const OptimizerOptions& optimizer = {});

  /// From now on the batches are pairs, and the loss is that of direct preference optimization.
  void train_on_preferences(double beta) {
    task_ = Task::kDpo;
    dpo_beta_ = beta;
  }

  /// The whole model; layers of other ranks have only names and shapes.
  [[nodiscard]] Model& model() { return *model_; }
  [[nodiscard]] const Model& model() const { return *model_; }
  /// The parameters of this rank's stages, each once.
  [[nodiscard]] const Parameters& parameters() const { return parallelized_.parameters(); }
  /// The ranks that train on the same sequences: those with this rank's dp coordinate.
  [[nodiscard]] const Axis& same_batch() const { return same_batch_; }

  /// Seconds in collectives of experts so far.
  [[nodiscard]] double expert_seconds() const;
  /// The optimizer of this rank's parameters.
  [[nodiscard]] Optimizer& optimizer() { return *parallelized_.optimizer; }

  /// Updates the weights that forward reads from the leaves. Call it after the leaves are filled.
  /// Collective.
  void refresh_weights() { parallelized_.gradients->refresh_weights(); }
  /// A step of the optimizer from complete gradients times `gradient_scale`. Collective.
  void step(double lr, double gradient_scale = 1) {
    parallelized_.optimizer->step(lr, gradient_scale);
  }

  /// Forward and backward of this data-parallel rank's sequences, given as micro-batches in CPU
  /// memory, as many on every rank. Afterwards the leaves' gradients are complete, ready to be
  /// clipped and applied. `seed` and `step` seed dropout. The loss is multiplied by `loss_scale`
  /// and the gradients are divided by it at the end. Throws Error(kFormat) for a batch without
  /// labels. Collective.
  ///
  /// Each micro-batch of each data-parallel rank has its own auxiliary loss, for a model with
  /// experts. The result has their mean, weighted by the micro-batches' terms of the loss.
  PassResult train_pass(std::span<const Batch> batches, uint64_t seed, int64_t step,
                        double loss_scale = 1);
  /// Log-probabilities of this data-parallel rank's sequences, in their order, on all ranks of
  /// same_batch(): [rows of all batches] fp64 on the CPU. Without gradients. Collective.
  Tensor log_probs(std::span<const Batch> batches);
  /// Evaluation sums of this data-parallel rank's sequences, on all ranks of same_batch().
  /// Collective.
  EvalSum eval_pass(std::span<const Batch> batches);

 private:
  [[nodiscard]] GradientNorm gradient_norm() const;
  /// The batches on the device of the leaves.
  [[nodiscard]] std::vector<Batch> moved(std::span<const Batch> batches) const;
  [[nodiscard]] std::vector<MicroBatch> inputs_of(std::span<const Batch> batches,
                                                  const Context& shared) const;
  [[nodiscard]] Context context_of_step(uint64_t seed, int64_t step) const;
  void add_balance(std::vector<MicroBatch>& inputs, std::span<const Batch> batches,
                   double scale) const;
  void add_head_loss(std::vector<MicroBatch>& inputs, std::span<const Tensor> targets,
                     int64_t count, double scale) const;
  [[nodiscard]] EvalSum eval_sum(const DTensor& result, const Batch& batch) const;
  /// `t` of the last stage, on all ranks of a pipeline.
  void share_result(Tensor& t, std::string_view site) const;

  std::unique_ptr<Model> model_;
  Parallelized parallelized_;
  Axis same_batch_;
  Axis norm_axis_;  // of gradient_norm(): same_batch_, or all ranks if leaves are sharded over dp
  Task task_;
  double dpo_beta_ = 0;
};

}  // namespace cleave::inline train
