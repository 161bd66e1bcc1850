#pragma once
#include "cleave/parallel/config.h"
#include "cleave/verify/part.h"

namespace cleave::verifying {

/// The input of a training step: the sequences of all data-parallel ranks.
struct StepInput {
  Tensor ids;     ///< [B, T]
  Tensor labels;  ///< shape of the logits without the last dim; has_label() where there are any
  bool training = false;
};

/// The context of the whole batch.
Context context_of(const StepInput& input, uint64_t seed);

/// The AdamW settings of the compared step.
inline constexpr double kLearningRate = 1e-2;
inline constexpr double kAdamEps = 1e-8;

/// Forward, loss, backward and gradient sync over all axes. Returns loss, output (of this
/// data-parallel rank's sequences), gradients and norm.
std::vector<Quantity> run_step(Model& model, const ParallelAxes& axes, const StepInput& input,
                               const VerifySettings& settings);

/// The type of master weights for the compute type `type`: fp64 for fp64, else fp32.
at::ScalarType master_type(at::ScalarType type);

/// The weights after one AdamW step from the gradients of run_step. Steps copies in the type of
/// master weights.
std::vector<Quantity> stepped_weights(Model& model);

/// The logits [B, 1, V] of the last ids, each after a prefill of those before it, for the sequences
/// of this data-parallel rank: as they are, and with padding before them, as generation has it in
/// a batch. Nothing where generation does not decode so: the model does not use the KV cache, or
/// its rotary frequencies change here.
std::vector<Quantity> decoded_logits(Model& model, const ParallelAxes& axes,
                                     const StepInput& input);

/// The ids that the model generates after `prompts` by greedy decoding.
std::vector<std::vector<int64_t>> continued(Model& model, const Axis& tp,
                                            const std::vector<std::vector<int64_t>>& prompts,
                                            int64_t num_new_tokens);

}  // namespace cleave::verifying
