#pragma once
#include <memory>

#include "cleave/model/model.h"

namespace cleave {

/// A Mistral without memory from its config.json.
std::unique_ptr<Model> make_mistral(const Json& config);

/// mistral-7b.
std::vector<Preset> mistral_presets();

}  // namespace cleave
