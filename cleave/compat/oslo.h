#pragma once
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cleave/data/batch.h"
#include "cleave/generate/generate.h"
#include "cleave/mesh/mesh.h"
#include "cleave/model/model.h"
#include "cleave/optim/optimizer.h"

/// OSLO's tensor parallelism under its names. docs/oslo.md is its page; docs/migration.md says what
/// to write instead of what is not here.
namespace cleave::oslo {

/// What OSLO is told, a JSON object of blocks; a block that is there is on unless its "enable" is
/// false.
///
///   "model_parallelism": {"enable", "tensor_parallel_size": 1, "pipeline_parallel_size": 1}
///   "activation_checkpointing": {"enable"}
///
/// "kernel_fusion", a pipeline and the other ways to checkpoint are understood but must be off.
/// Throws Error(kFormat) naming key, value and byte for an unknown key, a value of another type, a
/// size below 1; Error(kIo) for a file that cannot be read.
struct Config {
  int tensor_parallel_size = 1;           ///< >= 1, any number
  bool activation_checkpointing = false;  ///< blocks keep their inputs alone

  Config(const Json& json);              // NOLINT(google-explicit-constructor)
  Config(const std::string& json_file);  // NOLINT(google-explicit-constructor)
  Config(const char* json_file);         // NOLINT(google-explicit-constructor)
};

/// What a call gives.
struct Output {
  Tensor loss;     ///< one number: the mean over this rank's labels; undefined without labels
  DTensor logits;  ///< [B, T, V], or [B, C] of a classifier; full_tensor() is whole on every rank
};

/// Tensors by the names of parameters, each this rank's part of it.
using StateDict = std::map<std::string, Tensor>;

struct SaveOptions {
  bool merge_checkpoints = false;   ///< whole tensors, for other programs and any layout
  bool save_config = true;          ///< config.json, with the dtype of the files
  StateDict state_dict{};           ///< what to save of the model; empty: its parameters
  std::string max_shard_size{};     ///< of a merged file, "5GB" unless given; a larger one is cut
  bool safe_serialization = false;  ///< merged as safetensors, not as pytorch_model.bin
};

/// A model that is split over the ranks of a job. Every rank calls everything here alike.
class ParallelModel {
 public:
  /// What initialize does; use that.
  ParallelModel(std::unique_ptr<Model> model, const Config& config, World& world);

  /// Forward. Labels are those of transformers: the ids themselves for a causal model, which shifts
  /// them; -100 counts nothing. Dropout is off, as from_pretrained leaves it, unless
  /// `context.training`; the batch's mask, token types and first row take the context's places.
  ///
  /// Throws Error(kDesync) when the ranks of a tensor-parallel group begin with different batches.
  Output operator()(const Batch& batch, const Context& context = {});

  /// After backward: completes the gradients over the ranks (their mean over data-parallel ones),
  /// scales them to a norm of at most `max_norm`, and updates. Returns the norm before that. Throws
  /// Error(kNumerics) naming the parameter whose gradient is not finite; nothing is updated then.
  double step(Optimizer& optimizer, double lr,
              double max_norm = std::numeric_limits<double>::infinity());

  /// Continues prompts, beams too (generate/generate.h); the same result on every rank.
  Generation generate(const std::vector<Ids>& prompts, const GenerateSettings& settings);

  /// Writes the model into `save_directory`: a file pytorch_model_tp_I_pp_0.bin a rank, or with
  /// merge_checkpoints (and always on one rank) pytorch_model.bin, in parts with an index where it
  /// is larger than max_shard_size.
  ///
  /// A model that is there already is replaced at once, when the new one is whole on the disk;
  /// other files of the folder stay. Throws Error(kUsage) for options that do not go together and
  /// for state_dict's names, Error(kIo).
  void save_parallelized(const std::string& save_directory, const SaveOptions& options = {}) const;

  /// Takes the weights of a folder that save_parallelized wrote on any number of ranks, or of any
  /// other model folder. An optimizer of this model goes on with them. Throws Error(kIo) when the
  /// folder or a rank's file is missing, Error(kFormat) listing the tensors that are missing and
  /// those that the model has no use for, or what is damaged; Error(kShape).
  void from_parallelized(const std::string& directory);

  [[nodiscard]] Model& model() const { return *model_; }
  [[nodiscard]] Parameters parameters() const { return model_->parameters(); }
  [[nodiscard]] const Axis& tensor_parallel() const { return tp_; }
  [[nodiscard]] const Axis& data_parallel() const { return dp_; }

 private:
  void check_same_batch(const Batch& batch);

  std::unique_ptr<Model> model_;
  Axis tp_, dp_, world_;
  bool has_checked_batch_ = false;
};

/// Splits a model over the ranks: tensor_parallel_size of them hold one copy, the others copies of
/// their own. A model that has its memory keeps this rank's part, and an Optimizer that was made of
/// it goes on; one without memory gets it from from_parallelized or materialize.
///
/// Throws Error(kShape) when the size is more than the ranks, does not divide them, or is more than
/// the model's heads, saying which sizes can be; Error(kUsage) for a model that is split already.
ParallelModel initialize(std::unique_ptr<Model> model, const Config& config, World& world);

}  // namespace cleave::oslo
