#pragma once
#include <memory>
#include <string>
#include <vector>

#include "cleave/model/facts.h"
#include "cleave/nn/layer.h"
#include "cleave/parallel/plan.h"
#include "cleave/text/json.h"

namespace cleave {

/// Where the values of a parameter lie in a folder's files.
struct StoredAs {
  std::string name;
  /// Rows of each head in Meta's order: pairs of rotary dims side by side instead of half a head
  /// apart. 0: as the parameter; otherwise the head's rows.
  int64_t interleaved_rows = 0;
};

/// A whole model: ids in, logits out. Parameters have Hugging Face names.
///
///   ids [B, T] int64   result [B, T, V], Replicate or Shard(-1) as the plan says; of a classifier
///   [B, C]
class Model : public Layer {
 public:
  [[nodiscard]] virtual const ModelFacts& facts() const = 0;
  /// The tensor-parallel plan that the model ships; with sequence parallel, activations between the
  /// split parts (norms, residuals, dropout) are cut along T.
  [[nodiscard]] virtual Plan plan(bool sequence_parallel = false) const = 0;
  /// Layers that are called one after the other: embedding, blocks, head. A pipeline's stage is a
  /// range of them; FSDP and recompute wrap them one by one.
  [[nodiscard]] virtual std::vector<Layer*> sequence() = 0;
  /// "lm", "mlm" or "classify": what it is trained for; "features" for one without a head.
  [[nodiscard]] virtual std::string task() const { return "lm"; }
  /// Names under which older files may have a parameter.
  [[nodiscard]] virtual std::vector<std::string> other_names(
      const std::string& /*parameter*/) const {
    return {};
  }
  /// Whether a folder may hold this tensor although the model has no use for it.
  [[nodiscard]] virtual bool ignores(const std::string& /*tensor*/) const { return false; }
  /// The config.json it was made from.
  [[nodiscard]] const Json& config() const { return config_; }
  /// Floating point operations of forward and backward per token, at a sequence length.
  [[nodiscard]] virtual double train_flops_per_token(int64_t seq_len) = 0;

 protected:
  explicit Model(Json config) : config_(std::move(config)) {}
  DTensor forward(const DTensor& ids, const Context& context) final;

 private:
  Json config_;
};

/// Makes a model without memory from its config.json.
using ModelFactory = std::unique_ptr<Model> (*)(const Json& config);

/// Makes a model family known by its config.json's model_type; for programs that add their own.
void register_model(const std::string& model_type, ModelFactory factory);

/// A model without memory. Throws Error(kFormat) for an unknown model_type or values out of range.
std::unique_ptr<Model> make_model(const Json& config);

/// A configuration known by a name of its own.
struct Preset {
  std::string name;
  std::string config_json;  ///< text of its config.json, with the vocabulary it was published with
};

/// config.json of a preset for a vocabulary; Error(kUsage) with the names when there is no such
/// one.
Json preset_config(const std::string& name, int64_t vocab_size);
[[nodiscard]] std::vector<std::string> preset_names();

/// A folder with a model: Hugging Face's config.json and tensor files of any form that
/// open_model_files reads, or Meta's params.json and consolidated.safetensors.
struct ModelFolder {
  std::string path;         ///< a run folder is followed to its latest checkpoint
  Json config;              ///< Hugging Face form
  std::string stem;         ///< of the tensor files: "model" or "consolidated"
  bool meta_names = false;  ///< tensors are named as Meta does

  /// Throws Error(kIo) when the folder has no model, saying what was looked for.
  static ModelFolder open(const std::string& path);
  /// Where `parameter` (its Hugging Face name) is stored.
  [[nodiscard]] StoredAs stored_as(const std::string& parameter) const;
};

}  // namespace cleave
