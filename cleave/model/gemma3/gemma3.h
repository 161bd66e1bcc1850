#pragma once
#include <memory>

#include "cleave/model/model.h"

namespace cleave {

/// A Gemma 3 for text without memory from its config.json.
std::unique_ptr<Model> make_gemma3(const Json& config);

/// gemma3-tiny, gemma3-270m, gemma3-1b.
std::vector<Preset> gemma3_presets();

}  // namespace cleave
