#pragma once
#include <memory>

#include "cleave/model/model.h"

namespace cleave {

/// A Phi-3, Phi-3.5 or Phi-4 without memory from its config.json.
std::unique_ptr<Model> make_phi3(const Json& config);

/// phi3-mini.
std::vector<Preset> phi3_presets();

}  // namespace cleave
