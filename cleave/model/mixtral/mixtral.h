#pragma once
#include <memory>

#include "cleave/model/model.h"

namespace cleave {

/// A Mixtral without memory from its config.json.
std::unique_ptr<Model> make_mixtral(const Json& config);

/// mixtral-tiny and mixtral-8x7b.
std::vector<Preset> mixtral_presets();

}  // namespace cleave
