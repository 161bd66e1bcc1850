#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include "cleave/generate/options.h"
#include "cleave/mesh/axis.h"
#include "cleave/mesh/consistency.h"
#include "cleave/mesh/mesh.h"
#include "cleave/model/generation_config.h"
#include "cleave/model/model.h"
#include "cleave/nn/layer.h"
#include "cleave/tokenizer/tokenizer.h"
#include "cleave/train/fingerprint.h"
#include "cleave/train/task.h"

namespace cleave::inline generation {

/// The forms of Linear layers' weights for inference. kPlain: in the model's dtype. kInt8: 8 bits
/// with a scale for each output. kInt4: 4 bits with a scale and a minimum for each group of 32
/// inputs; kInt4Sym: without minimums.
enum class WeightForm : uint8_t { kPlain, kInt8, kInt4, kInt4Sym };

/// The form that a value of --dtype stands for; kPlain for the number types.
WeightForm weight_form(std::string_view dtype);

/// A model folder for inference, with its dtype and device. Made before any rank starts. Immutable.
class Runnable {
 public:
  /// `dtype` is the value of the flag: "" = that of the files (fp16 files run in fp32), int8,
  /// int4 and int4_sym = weights quantized to 8 or 4 bits when loaded, with fp32 activations
  /// between matrix products. Throws Error(kIo) if there is no model, Error(kUsage) for an
  /// unsupported dtype or device or a model whose task is not in `tasks`.
  Runnable(const std::string& path, const std::string& dtype, const std::string& device,
           const std::vector<std::string>& tasks = {"lm"})
      : Runnable(ModelFolder::open(path), dtype, device, tasks) {}
  /// Loads the options' model with their adapter merged. Also throws Error(kUsage) for a dtype of
  /// the KV cache that the device lacks.
  Runnable(const RunOptions& options, const std::vector<std::string>& tasks);

  [[nodiscard]] const ModelFolder& folder() const { return folder_; }
  [[nodiscard]] const ModelFacts& facts() const { return facts_; }
  [[nodiscard]] Task task() const { return task_; }
  [[nodiscard]] at::ScalarType dtype() const { return dtype_; }
  /// As --dtype names it, also if the flag is not given.
  [[nodiscard]] std::string dtype_name() const;
  /// The folder or GGUF file of the tokenizer `wanted`: the model's for "", that of a run's newest
  /// checkpoint for a run folder, that of the Hugging Face cache for ORG/NAME; "" for "bytes".
  [[nodiscard]] std::string tokenizer_folder(const std::string& wanted) const;
  /// The tokenizer: "bytes", that of a folder, or with "" that of the model folder. Null if the
  /// model folder has none; throws Error(kUsage) then if `is_needed`. Throws Error(kShape) if one
  /// that is not the model's own has more ids than the model.
  [[nodiscard]] std::shared_ptr<const Tokenizer> tokenizer(const std::string& wanted,
                                                           bool is_needed) const;
  /// Tokens per sequence: `wanted`, or if it is 0 those that the checkpoint was trained with, or if
  /// the folder does not say, `otherwise` or the model's positions, whichever is less. Throws
  /// Error(kShape) unless `wanted` is from 0 to the model's positions.
  [[nodiscard]] int64_t seq_len(int64_t wanted, int64_t otherwise) const;
  /// Whether the checkpoint was trained with --packing, which keeps documents apart.
  [[nodiscard]] bool is_packing() const;
  /// The model's own settings of generated text.
  [[nodiscard]] const GenerationConfig& generation() const { return generation_; }
  /// Ids that end a text.
  [[nodiscard]] const std::vector<int64_t>& eos_ids() const { return generation_.eos_ids; }

  /// The model on this rank: sharded over `tp`, its experts shared out over `ep` (ranks that run
  /// the same sequences), loaded on the device, with the weights in their form for inference. They
  /// have no gradients, and some have no leaf. Throws Error(kShape) for an ep of a model without
  /// experts, or with fewer than ranks.
  [[nodiscard]] std::unique_ptr<Model> load(const Axis& tp, const Axis& ep = {}) const;

  /// What must match on all ranks: the options marked so, config and weights (by add_weights) of
  /// the model, and the checkpoint of a run.
  template <class Options>
  [[nodiscard]] ConfigFingerprint fingerprint(Options options) const {
    ConfigFingerprint fingerprint;
    options.dtype = dtype_name();
    add_options(fingerprint, options);
    add_model(fingerprint);
    return fingerprint;
  }

 private:
  Runnable(ModelFolder folder, const std::string& dtype, const std::string& device,
           const std::vector<std::string>& tasks);
  [[nodiscard]] std::unique_ptr<Model> read(const Axis& tp, const Axis& ep) const;
  void add_model(ConfigFingerprint& fingerprint) const;
  /// The state of the run that wrote the model or its adapter; nothing if no run did.
  [[nodiscard]] std::optional<Json> run_state() const;

  ModelFolder folder_;
  ModelFacts facts_;
  Task task_ = Task::kLm;
  at::Device device_;
  WeightForm form_;
  at::ScalarType dtype_;
  std::string kv_cache_dtype_ = "auto";
  GenerationConfig generation_;
};

/// A checksum of lists of ids, for a fingerprint.
std::string checksum_of(const std::vector<std::vector<int64_t>>& rows);
/// A checksum of a tokenizer; "none" if null.
std::string checksum_of(const Tokenizer* tokenizer);

/// The ranks of a command, as one of them sees them.
struct RunAxes {
  Axis tp, ep;
  Axis all;   ///< tp and ep
  Mesh mesh;  ///< of ep and tp
  /// Whether this rank prints.
  [[nodiscard]] bool is_first() const { return tp.rank() == 0 && ep.rank() == 0; }
};

/// Runs `work` on options.tp x options.ep ranks, with the options' library of matrix products.
/// Throws as run_job does, and as check_consistent if the fingerprints or machine options of the
/// ranks differ. `fingerprint` is only called if ranks are processes; rank threads share their
/// options.
void run_on_ranks(const RunOptions& options, const std::function<ConfigFingerprint()>& fingerprint,
                  const std::function<void(const RunAxes&)>& work);

/// Converts the weights of all Linear layers to a form for inference, which training cannot use:
/// panels, one row per output if they are stored transposed, or matrices of 8 or 4 bits. The
/// original is freed matrix by matrix, unless an embedding reads it too. With 4 bits, heads get 8.
/// With 8 or 4 bits, all other weights become fp32, and keys and values are rounded to bf16.
/// Experts of other ranks are left out. Collective over the axis that shards the model.
void prepare_weights(Layer& model, WeightForm form);
/// Sets the dtype of all attentions' keys and values, as --kv-cache-dtype names it. Inference on
/// CPUs only.
void set_kv_cache_dtype(Layer& model, const std::string& dtype);

}  // namespace cleave::inline generation
