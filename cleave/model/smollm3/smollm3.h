#pragma once
#include <memory>

#include "cleave/model/model.h"

namespace cleave {

/// A SmolLM3 without memory from its config.json.
std::unique_ptr<Model> make_smollm3(const Json& config);

/// smollm3-3b.
std::vector<Preset> smollm3_presets();

}  // namespace cleave
