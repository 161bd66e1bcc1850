#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace cleave::inline checkpoint {

/// Stem of the optimizer's files in a checkpoint, and the parts of its tensor names PART.PARAMETER.
inline constexpr std::string_view kOptimizerStem = "optimizer";
inline constexpr std::string_view kMaster = "master";        ///< the weight in the optimizer's type
inline constexpr std::string_view kExpAvg = "exp_avg";       ///< first moment
inline constexpr std::string_view kExpAvgSq = "exp_avg_sq";  ///< second moment
inline constexpr std::string_view kEma = "ema";              ///< averaged weight
inline constexpr std::string_view kNumSteps = "num_steps";   ///< key in the files' metadata

/// The file of a checkpoint with all that resuming needs apart from tensors.
inline constexpr std::string_view kStateName = "state.json";

/// The file of a checkpoint with a run's log-probabilities under the reference model (task dpo).
inline constexpr std::string_view kReferenceName = "reference_log_probs.safetensors";

/// "exp_avg.model.norm.weight"
std::string state_name(std::string_view part, std::string_view parameter);

/// "step_00000200"; and its inverse, nullopt for any other name.
std::string checkpoint_name(int64_t step);
std::optional<int64_t> checkpoint_step(std::string_view name);

}  // namespace cleave::inline checkpoint
