#pragma once
#include <memory>

#include "cleave/model/model.h"

namespace cleave {

/// A OLMo 2 without memory from its config.json.
std::unique_ptr<Model> make_olmo2(const Json& config);

/// olmo2-1b.
std::vector<Preset> olmo2_presets();

}  // namespace cleave
