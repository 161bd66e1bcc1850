#pragma once
#include <memory>

#include "cleave/model/model.h"

namespace cleave {

/// A Qwen2 or Qwen2.5 without memory from its config.json.
std::unique_ptr<Model> make_qwen2(const Json& config);

/// qwen2.5-0.5b.
std::vector<Preset> qwen2_presets();

}  // namespace cleave
