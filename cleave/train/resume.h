#pragma once
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cleave/mesh/mesh.h"
#include "cleave/optim/loss_scale.h"
#include "cleave/text/json.h"
#include "cleave/train/early_stop.h"
#include "cleave/train/options.h"
#include "cleave/train/reference.h"
#include "cleave/train/setup.h"

namespace cleave::inline train {

/// Where a run is: what a checkpoint keeps in addition to the weights and the optimizer, so that a
/// resumed run computes the same.
struct RunState {
  /// The state of a run before its first step.
  explicit RunState(const TrainSetup& setup);

  std::string model_name;  ///< --model of the first start of the run
  int64_t step = 0;        ///< steps finished
  int64_t tokens = 0;      ///< trained on since step 1, by all ranks
  LossScale loss_scale;
  EarlyStop early_stop;
  bool evaluation_is_pending = false;  ///< after `step`: a signal interrupted it
  std::string eval_data;  ///< checksum, of the last start that had such data; "" = none
  std::optional<ReferenceLogProbs> reference{};  ///< of preferences, once it is known

  /// Whether all steps are done, or the run has stopped early.
  [[nodiscard]] bool is_over(int64_t num_steps) const {
    return step >= num_steps || early_stop.is_over();
  }
  /// The text of state.json, which also has the run's options, data and layout.
  [[nodiscard]] std::string json(const TrainSetup& setup, const Mesh& mesh) const;
  /// Sets all but `reference` to the values of a state.json. `out` is the run's folder.
  void restore(const Json& state, const std::string& out);
};

/// Adds the options that a resumed run compares with its own (option::OnResume) to a checkpoint's
/// state: {"batch_size": 8, ...}.
void save_options(nlohmann::ordered_json& state, TrainOptions options);

/// Compares the options with those that save_options saved. Returns a warning for each change that
/// is allowed but easily overlooked; throws Error(kUsage) for one that is not.
std::vector<std::string> check_resumed(const Json& state, TrainOptions options);

}  // namespace cleave::inline train
