#pragma once
#include <memory>

#include "cleave/model/model.h"

namespace cleave {

/// A Gemma 2 without memory from its config.json.
std::unique_ptr<Model> make_gemma2(const Json& config);

/// gemma2-tiny, gemma2-2b.
std::vector<Preset> gemma2_presets();

}  // namespace cleave
