#pragma once
#include <filesystem>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include "cleave/format/safetensors.h"
#include "cleave/model/model.h"
#include "cleave/parallel/lora.h"

namespace cleave {

/// Stem of the tensor files of an adapter's folder, in PEFT's form.
inline constexpr std::string_view kAdapterStem = "adapter_model";

/// The name of a parameter of an adapter in PEFT's files:
/// "base_model.model.model.layers.0.mlp.up_proj.lora_A.weight".
std::string adapter_name(const std::string& parameter);

/// The LoRA options of an adapter's folder (its adapter_config.json). Throws Error(kFormat) for
/// another kind of adapter, and for settings that Cleave does not support, by name.
LoraOptions read_lora(const std::filesystem::path& folder);

/// adapter_config.json of a model with adapters, which PEFT opens. `base`: what PEFT loads as the
/// base model: a folder, or ORG/NAME.
std::string adapter_config_json(const LoraOptions& lora, Model& model, const std::string& base);

/// The products scale B A of an adapter's files, to be added to the weights of a model.
class AdapterDelta {
 public:
  /// Throws Error(kFormat) unless every tensor of the folder belongs to a Linear layer of `model`
  /// and fits its weight. With `left_out`, tensors of other layers are no error but added to it:
  /// the model may have another head than the adapter's.
  AdapterDelta(const std::filesystem::path& folder, Model& model,
               std::set<std::string>* left_out = nullptr);

  /// Adds its part of the block `slices` of the weight `stored.name` to the block's values `out`,
  /// in fp32 (fp64 if they are), rounded once. Other tensors do not change.
  void add(const TensorInfo& stored, std::span<const Slice> slices, std::span<std::byte> out) const;

 private:
  struct Target {
    std::string a, b;            // names in the files
    bool is_transposed = false;  // the weight is stored [in, out]
  };
  void require_shape(const std::string& name, const std::vector<int64_t>& expected) const;

  Safetensors files_;
  double scale_ = 1;
  std::map<std::string, Target, std::less<>> targets_;  // by the weight's name
};

}  // namespace cleave
