#pragma once
#include <memory>

#include "cleave/model/model.h"

namespace cleave {

/// A Qwen3 with experts, without memory, from its config.json.
std::unique_ptr<Model> make_qwen3_moe(const Json& config);

/// qwen3-moe-tiny and qwen3-30b-a3b.
std::vector<Preset> qwen3_moe_presets();

}  // namespace cleave
