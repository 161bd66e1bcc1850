#pragma once
#include <memory>

#include "cleave/model/model.h"

namespace cleave {

/// A Qwen3 without memory from its config.json.
std::unique_ptr<Model> make_qwen3(const Json& config);

/// qwen3-0.6b.
std::vector<Preset> qwen3_presets();

}  // namespace cleave
