#pragma once
#include <set>

#include "cleave/verify/probe.h"
#include "cleave/verify/step.h"

namespace cleave::verifying {

/// The values of a part on one rank.
struct WantedPart {
  std::string name;
  std::string path{};  ///< of the layer; "" of the model and of the loss
  bool is_run = true;  ///< false: not matched by settings.layer
  Tensor x;            ///< the whole input
  std::vector<Wanted> values{};
};

/// The values of one rank with dropout, or without.
struct WantedRun {
  StepInput input;
  std::vector<WantedPart> parts{};  ///< calls in the order of Probes::record, then the loss
  std::vector<Wanted> step{};       ///< of run_step; without dropout also of stepped_weights
};

/// The results of the model on one rank. All ranks compare with it, at the same time.
struct Reference {
  std::vector<Wanted> initial;      ///< weights
  std::vector<WantedRun> runs;      ///< without dropout; then with it, if the model has dropout
  std::set<std::string> constants;  ///< constant parameters, which get noise
  std::vector<std::vector<int64_t>> prompts, ids;
  /// The scores of the model on one rank after a list of ids. [V]
  std::function<Tensor(const std::vector<int64_t>&)> scores;
};

/// Sets the weights of a parallelized model: those of the settings, plus noise on `constants`.
void set_weights(Model& model, const VerifySettings& settings,
                 const std::set<std::string>& constants);

/// The layer calls of one forward of the whole batch.
std::vector<LayerCall> recorded(Model& model, Probes& probes, const Axis& tp,
                                const StepInput& input, uint64_t seed);

/// The parts of a recorded forward: its calls, then the loss.
std::vector<Part> parts_of(const std::vector<LayerCall>& calls, const VerifySettings& settings,
                           const StepInput& input, const ParallelAxes& axes);

/// Computes the reference on one rank.
Reference make_reference(const MakeModel& make, const VerifySettings& settings);

}  // namespace cleave::verifying
