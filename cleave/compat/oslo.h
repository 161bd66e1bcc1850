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

/// OSLO's tensor parallelism under its names. See docs/oslo.md; docs/migration.md lists
/// replacements for what is missing here.
namespace cleave::oslo {

/// OSLO's configuration, a JSON object of blocks; a block is enabled unless its "enable" is false.
///
///   "model_parallelism": {"enable", "tensor_parallel_size": 1, "pipeline_parallel_size": 1}
///   "activation_checkpointing": {"enable"}
///
/// "kernel_fusion", a pipeline and the other kinds of activation checkpointing are recognized but
/// must be off. Throws Error(kFormat) with key, value and byte for an unknown key, a value of
/// another type, or a size below 1; Error(kIo) for a file that cannot be read.
struct Config {
  int tensor_parallel_size = 1;           ///< >= 1, any number
  bool activation_checkpointing = false;  ///< blocks keep only their inputs

  Config(const Json& json);              // NOLINT(google-explicit-constructor)
  Config(const std::string& json_file);  // NOLINT(google-explicit-constructor)
  Config(const char* json_file);         // NOLINT(google-explicit-constructor)
};

/// Result of a forward call.
struct Output {
  Tensor loss;     ///< scalar: the mean over this rank's labels; undefined without labels
  DTensor logits;  ///< [B, T, V], or [B, C] of a classifier; full_tensor() is whole on every rank
};

/// This rank's shards by parameter name.
using StateDict = std::map<std::string, Tensor>;

struct SaveOptions {
  bool merge_checkpoints = false;   ///< write whole tensors, for other programs and any layout
  bool save_config = true;          ///< write config.json, with the dtype of the files
  StateDict state_dict{};           ///< tensors to save; empty: the model's parameters
  std::string max_shard_size{};     ///< of a merged file, "5GB" if empty; larger ones are divided
  bool safe_serialization = false;  ///< merged as safetensors, not as pytorch_model.bin
};

/// A model sharded over the ranks of a job. All methods must be called on every rank.
class ParallelModel {
 public:
  /// Use initialize instead.
  ParallelModel(std::unique_ptr<Model> model, const Config& config, World& world);

  /// Forward. Labels are those of transformers: the ids themselves for a causal model, which shifts
  /// them; -100 is ignored. Dropout is off, as after from_pretrained, unless `context.training`;
  /// then also give the place of the first sequence in the batch of all data-parallel ranks, as
  /// `batch.first_row` or `context.first_sample`, so that ranks drop other elements. What the batch
  /// has (mask, token types, first row) replaces the context's.
  ///
  /// Throws Error(kDesync) if the first batch differs between ranks of a tensor-parallel group.
  Output operator()(const Batch& batch, const Context& context = {});

  /// After backward: reduces the gradients over the ranks (mean over data-parallel ranks), clips
  /// them to a norm of at most `max_norm`, and updates. Returns the norm before clipping. Throws
  /// Error(kNumerics), without an update, with the parameter whose gradient is not finite.
  double step(Optimizer& optimizer, double lr,
              double max_norm = std::numeric_limits<double>::infinity());

  /// Continues prompts, also with beam search (generate/generate.h); the same result on every rank.
  /// As in transformers, sequences end at the end ids of the model's config.json if the settings
  /// name none.
  Generation generate(const std::vector<Ids>& prompts, const GenerateSettings& settings);

  /// Writes the model into `save_directory`: one file pytorch_model_tp_I_pp_0.bin per rank, or with
  /// merge_checkpoints (and always on one rank) pytorch_model.bin, in several files with an index
  /// if it is larger than max_shard_size.
  ///
  /// Weights that FSDP or ZeRO-1 shards over the data-parallel ranks are gathered one by one.
  ///
  /// An existing model is replaced atomically, after the new one is complete on the disk; other
  /// files of the folder stay. Throws Error(kUsage) for incompatible options and for unknown names
  /// in state_dict, Error(kIo).
  void save_parallelized(const std::string& save_directory, const SaveOptions& options = {}) const;

  /// Loads the weights of a folder that save_parallelized wrote on any number of ranks, of a run
  /// folder's newest checkpoint, or of any other model folder. An optimizer of this model continues
  /// with them. Throws Error(kIo) if the folder or a rank's file is missing, Error(kFormat) with
  /// the missing and unexpected tensors or the damaged file, Error(kShape).
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

/// Shards a model over groups of tensor_parallel_size ranks; each group holds one copy of the
/// model. An allocated model keeps this rank's shards, and an Optimizer made of it stays valid; a
/// model without memory is allocated by from_parallelized or materialize.
///
/// Throws Error(kShape), with the possible sizes, if the size is more than the number of ranks,
/// does not divide it, or is more than the model's heads; Error(kUsage) if the model is already
/// sharded.
ParallelModel initialize(std::unique_ptr<Model> model, const Config& config, World& world);

}  // namespace cleave::oslo
