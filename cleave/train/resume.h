#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cleave/text/json.h"
#include "cleave/train/options.h"

namespace cleave {

/// Adds the options that a resumed run compares with its own (option::OnResume) to a checkpoint's
/// state: {"batch_size": 8, ...}.
void save_options(nlohmann::ordered_json& state, TrainOptions options);

/// Compares the options with those that save_options saved. Returns a warning for each change that
/// is allowed but easily overlooked; throws Error(kUsage) for one that is not.
std::vector<std::string> check_resumed(const Json& state, TrainOptions options);

}  // namespace cleave
