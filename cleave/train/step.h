#pragma once
#include "cleave/data/batch.h"
#include "cleave/mesh/mesh.h"
#include "cleave/model/model.h"
#include "cleave/parallel/gradients.h"

namespace cleave {

struct StepOptions {
  int64_t micro_batch_size = 0;              ///< rows at once; 0 = all
  at::ScalarType compute_type = at::kFloat;  ///< of forward and backward
  uint64_t seed = 0;                         ///< of dropout
  int64_t step = 0;
};

/// What forward and backward of one step gave; the same on every rank of the tp axis.
struct PassResult {
  double loss = 0;         ///< this data-parallel rank's part of the global mean
  int64_t num_labels = 0;  ///< in the global batch
};

/// Forward and backward over a rank's rows, micro-batch by micro-batch, then gradients complete
/// over tp and summed over dp: ready to be clipped and applied.
PassResult train_pass(Model& model, const Mesh& mesh, const Batch& batch,
                      const StepOptions& options);

/// Sum of losses and number of labels of some rows, without gradients.
struct EvalSum {
  double loss = 0;
  int64_t num_labels = 0;
  int64_t num_right = 0;  ///< of a classifier's labels, those that it gives
};
EvalSum eval_pass(Model& model, const Axis& tp, const Batch& batch, at::ScalarType compute_type);

/// Lets forward read the weights as `type`: casts of the leaves, through which gradients flow back
/// to them; the leaves themselves where they have that type.
void use_weights_as(const Parameters& parameters, at::ScalarType type);

}  // namespace cleave
