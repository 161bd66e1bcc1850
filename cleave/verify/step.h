#pragma once
#include "cleave/verify/part.h"

namespace cleave::verifying {

/// What a training step gets. Rows are those of all data-parallel ranks.
struct StepInput {
  Tensor ids;     ///< [B, T]
  Tensor labels;  ///< logits' shape without the last dim; -100 has no label
  bool training = false;
};

/// The context of all rows.
Context context_of(const StepInput& input, uint64_t seed);

/// The AdamW of the step that is compared.
inline constexpr double kLearningRate = 1e-2;
inline constexpr double kAdamEps = 1e-8;

/// Forward, loss, backward and all sums of gradients over both axes. Returns loss, output (this
/// data-parallel rank's rows), gradients and norm.
std::vector<Quantity> run_step(Model& model, const Axis& tp, const Axis& dp, const StepInput& input,
                               const VerifySettings& settings);

/// Of the weights that training steps, where forward reads `type`: fp32, or fp64.
at::ScalarType master_type(at::ScalarType type);

/// One AdamW step of copies of the weights, in the type of masters, from the gradients that
/// run_step left; every weight after it.
std::vector<Quantity> stepped_weights(Model& model);

/// Ids that the model goes on with after `prompts`, greedily.
std::vector<std::vector<int64_t>> continued(Model& model, const Axis& tp,
                                            const std::vector<std::vector<int64_t>>& prompts,
                                            int64_t num_new_tokens);

}  // namespace cleave::verifying
