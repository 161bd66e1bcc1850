#pragma once
#include <filesystem>
#include <string>

#include "cleave/model/model.h"
#include "cleave/parallel/lora.h"

namespace cleave::inline checkpoint {

/// The LoRA options of an adapter's folder (its adapter_config.json). Throws Error(kFormat) for
/// another kind of adapter, and for settings that Cleave does not support, by name.
LoraOptions read_lora(const std::filesystem::path& folder);

/// adapter_config.json of a model with adapters, which PEFT opens; save_checkpoint() writes it
/// beside their weights. `base`: what PEFT loads as the base model: a folder, or ORG/NAME.
std::string adapter_config_json(const LoraOptions& lora, Model& model, const std::string& base);

}  // namespace cleave::inline checkpoint
