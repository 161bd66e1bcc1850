#pragma once
#include <set>

#include "cleave/verify/probe.h"
#include "cleave/verify/step.h"

namespace cleave::verifying {

/// What one rank gives for a part.
struct WantedPart {
  std::string name;
  bool is_run = true;  ///< false: left out by the settings' `layer`
  Tensor x;            ///< whole
  std::vector<Wanted> values{};
};

/// What one rank gives with dropout, or without.
struct WantedRun {
  StepInput input;
  std::vector<WantedPart> parts{};  ///< calls as Probes::record orders them, then the loss
  std::vector<Wanted> step{};       ///< as run_step; without dropout then stepped_weights
};

/// The model on one rank: everything that ranks compare with. Read by all of them at once.
struct Reference {
  std::vector<Wanted> initial;      ///< weights
  std::vector<WantedRun> runs;      ///< without dropout; with it, where the model has some
  std::set<std::string> constants;  ///< parameters that need noise
  std::vector<std::vector<int64_t>> prompts, ids;
  /// The last scores that one rank gives after a row of ids. [V]
  std::function<Tensor(const std::vector<int64_t>&)> scores;
};

/// Gives a planned model its weights: those of the settings, and noise for `constants`.
void give_weights(Model& model, const VerifySettings& settings,
                  const std::set<std::string>& constants);

/// The calls of one forward of the whole batch.
std::vector<LayerCall> recorded(Model& model, Probes& probes, const Axis& tp,
                                const StepInput& input, uint64_t seed);

/// The parts of a recorded forward: its calls, then the loss.
std::vector<Part> parts_of(const std::vector<LayerCall>& calls, const VerifySettings& settings,
                           const StepInput& input, const Axis& tp);

/// Runs all of it on one rank.
Reference make_reference(const MakeModel& make, const VerifySettings& settings);

}  // namespace cleave::verifying
