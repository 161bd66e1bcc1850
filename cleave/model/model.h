#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cleave/model/facts.h"
#include "cleave/nn/balance_loss.h"
#include "cleave/nn/layer.h"
#include "cleave/parallel/plan.h"
#include "cleave/text/json.h"

namespace cleave::inline model {

/// How a folder's files store a parameter.
struct StoredAs {
  std::string name;
  /// Rows of a head, if they are in Meta's order: each rotary pair is adjacent instead of half a
  /// head apart. 0: the parameter's own order.
  int64_t interleaved_rows = 0;
};

/// A whole model: ids in, logits out. Parameters have Hugging Face names.
///
///   ids [B, T] int64   result [B, T, V], Replicate or Shard(-1) as the plan says; a classifier's
///   is [B, C]
///
/// A user's model may have other inputs: the first layer of sequence() defines the first one, e.g.
/// image patches in floating point, and layers read others from Context::values.
class Model : public Layer {
 public:
  [[nodiscard]] const ModelFacts& facts() const { return facts_; }
  /// The model's tensor-parallel plan. With sequence parallelism, activations between the split
  /// layers (norms, residuals, dropout) are sharded along T. Default: each layer's default_style(),
  /// and columns for a last Linear (the head), whose logits stay sharded for the loss.
  [[nodiscard]] virtual Plan plan(bool sequence_parallel = false) const;
  /// Layers in call order: embedding, blocks, head. A pipeline stage is a range of them; FSDP and
  /// recompute wrap them one by one. Default: the children in the order of add(), those of a
  /// LayerGroup in its place.
  [[nodiscard]] virtual std::vector<Layer*> sequence();
  /// The training task: "lm", "mlm", "classify" or "regression" (one number per sequence);
  /// "features" for a model without a head.
  [[nodiscard]] virtual std::string task() const { return "lm"; }
  /// Other names that files may have for a parameter.
  [[nodiscard]] virtual std::vector<std::string> other_names(
      const std::string& /*parameter*/) const {
    return {};
  }
  /// Whether a folder may hold this tensor although the model does not use it.
  [[nodiscard]] virtual bool ignores(const std::string& /*tensor*/) const { return false; }
  /// Throws Error(kFormat) if config.json asks for something that only training does and Cleave
  /// does not implement, naming it.
  virtual void check_trainable() const {}
  /// The auxiliary loss of training; empty without one.
  [[nodiscard]] virtual std::optional<BalanceOptions> balance() const { return std::nullopt; }
  /// Whether a forward pass of one new token does not depend on the host's count of earlier ones
  /// where Context::num_keys is given, and never waits for the device, so that generation may
  /// record it. Default: no.
  [[nodiscard]] virtual bool can_record_decoding() const { return false; }
  /// The config.json it was made from.
  [[nodiscard]] const Json& config() const { return config_; }
  /// Floating point operations of forward and backward per token, at a sequence length. Default:
  /// three times the sum of forward_flops_per_token() over all layers, less the gradients of frozen
  /// matrices.
  [[nodiscard]] virtual double train_flops_per_token(int64_t seq_len);

 protected:
  /// Facts from the keys of config.json that most families use; see usual_facts().
  explicit Model(Json config);
  Model(Json config, ModelFacts facts) : config_(std::move(config)), facts_(std::move(facts)) {}
  DTensor forward(const DTensor& ids, const Context& context) final;

 private:
  Json config_;
  ModelFacts facts_;
};

/// Makes a model without memory from its config.json.
using ModelFactory = std::unique_ptr<Model> (*)(const Json& config);

/// Registers a model family under its model_type in config.json, for programs with their own
/// models; `presets` returns its named configurations.
void register_model(const std::string& model_type, ModelFactory factory,
                    std::vector<Preset> (*presets)() = nullptr);
/// The same for a model class with a constructor from its config.json.
template <class Family>
void register_model(const std::string& model_type) {
  register_model(model_type, [](const Json& config) -> std::unique_ptr<Model> {
    return std::make_unique<Family>(config);
  });
}

/// A model without memory. Throws Error(kFormat) for an unknown model_type or values out of range.
std::unique_ptr<Model> make_model(const Json& config);

/// config.json of a preset for a vocabulary, with 0 that of the published model; Error(kUsage) with
/// the nearest names for an unknown preset.
Json preset_config(const std::string& name, int64_t vocab_size);
[[nodiscard]] std::vector<std::string> preset_names();

/// The settings of an adapter in PEFT's form; a folder with this file is an adapter's.
inline constexpr std::string_view kAdapterConfigName = "adapter_config.json";

/// A folder with a model: Hugging Face's config.json and tensor files of any form that
/// open_model_files reads, or Meta's params.json and consolidated.safetensors. Or the folder of an
/// adapter (LoRA) in PEFT's form, which stands for its base model with the adapter merged.
struct ModelFolder {
  std::string path;         ///< of a run folder, its latest checkpoint
  Json config;              ///< Hugging Face form
  std::string stem;         ///< of the tensor files: "model" or "consolidated"
  bool meta_names = false;  ///< tensors have Meta's names
  std::string base{};       ///< of an adapter's folder: the base model's, which has the tensors
  std::string adapter{};    ///< the adapter's folder, or "" for a model without one
  bool averaged = false;    ///< the tensors are a checkpoint's averaged weights (train --ema)

  /// `adapter`: the folder of an adapter for the model, "" for none. Throws Error(kIo) if the
  /// folder has no model, naming the files that it needs, or if an adapter's base model is not
  /// there.
  static ModelFolder open(const std::string& path, const std::string& adapter = "");
  /// An adapter's folder, with the base model in `base`; "": where the adapter's config says.
  static ModelFolder open_adapter(const std::string& path, const std::string& base);
  /// The folders that are read: the model's, and the adapter's.
  [[nodiscard]] std::vector<std::string> folders() const {
    if (adapter.empty()) return {path};
    return {weights_path(), adapter};
  }
  /// The folder with the model's tensors.
  [[nodiscard]] const std::string& weights_path() const { return base.empty() ? path : base; }
  /// How `parameter` (its Hugging Face name) is stored.
  [[nodiscard]] StoredAs stored_as(const std::string& parameter) const;
};

}  // namespace cleave::inline model
