#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cleave/model/model.h"
#include "cleave/parallel/lora.h"

namespace cleave::inline checkpoint {

/// What to do with an adapter that Cleave does not read.
inline constexpr std::string_view kMergeInPeft =
    "merge the adapter in PEFT, with merge_and_unload(), and give the merged model";

/// What adapter_config.json says about an adapter's tensors.
struct AdapterSettings {
  LoraOptions lora;
  /// Ranks and alphas of single layers (rank_pattern and alpha_pattern of PEFT), by the end of a
  /// layer's path, or by its whole path after "^". The first entry that fits counts.
  std::vector<std::pair<std::string, int64_t>> ranks{};
  std::vector<std::pair<std::string, double>> alphas{};
  bool has_biases = false;  ///< the files have biases that take the place of the model's

  /// The options with the rank and alpha of the layer at `path`.
  [[nodiscard]] LoraOptions of(std::string_view path) const;
  /// Whether the files have weights that take the place of the model's.
  [[nodiscard]] bool replaces_weights() const { return has_biases || !lora.trained_layers.empty(); }
};

/// The settings of an adapter's folder. Throws Error(kFormat) for another kind of adapter, and for
/// settings that Cleave does not support, by name.
AdapterSettings read_adapter(const std::filesystem::path& folder);

/// Those of an adapter that can be trained further: throws Error(kFormat) for ranks and alphas of
/// some layers and for biases too.
LoraOptions read_lora(const std::filesystem::path& folder);

/// adapter_config.json of a model with adapters, which PEFT opens; save_checkpoint() writes it
/// beside their weights. `base`: what PEFT loads as the base model: a folder, or ORG/NAME.
std::string adapter_config_json(const LoraOptions& lora, Model& model, const std::string& base);

}  // namespace cleave::inline checkpoint
