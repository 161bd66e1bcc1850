#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cleave/base/range.h"
#include "cleave/base/resource_limits.h"
#include "cleave/chat/chat_template.h"
#include "cleave/checkpoint/run_folder.h"
#include "cleave/data/batch.h"
#include "cleave/data/packing.h"
#include "cleave/model/model.h"
#include "cleave/optim/optimizer.h"
#include "cleave/planner/forecast.h"
#include "cleave/train/options.h"
#include "cleave/train/task.h"

namespace cleave::inline train {

/// A training run, derived from its options: model, data and number of steps. Immutable and shared
/// by the rank threads of a process.
struct TrainSetup {
  TrainSetup(TrainOptions o, std::optional<ModelFolder> f)
      : options(std::move(o)),
        config(f ? f->config : Json::parse("null", "config.json")),
        folder(std::move(f)) {}

  /// Sequences of each sample: 2 for pairs.
  [[nodiscard]] int64_t rows_per_sample() const { return task == Task::kDpo ? 2 : 1; }

  TrainOptions options;         ///< `data` without the weights
  std::vector<double> weights;  ///< of the data files; empty if none were given
  Task task = Task::kLm;
  Json config;                                 ///< config.json of the model, as it will be saved
  std::optional<ModelFolder> folder;           ///< with the weights to load; none for a preset
  std::shared_ptr<const Tokenizer> tokenizer;  ///< null if the data are ids and there is none
  std::string tokenizer_folder;                ///< of the tokenizer's files; "" = bytes or none
  std::shared_ptr<const ChatTemplate> chat_template;  ///< null if none is needed or there is none
  ParallelConfig layout;
  StepShape step;                   ///< of which `planned` is the forecast
  std::optional<Forecast> planned;  ///< of a step; none if it failed
  std::shared_ptr<const Dataset> data;
  std::optional<Utilization> utilization;    ///< of `data`, unless it fills its sequences
  std::shared_ptr<const Dataset> eval_data;  ///< null without --eval-data
  BatchRules batches, eval_batches;          ///< how samples of either become batches
  SampleOrder order;
  OptimizerOptions optimizer;
  LrSchedule schedule;
  int64_t num_steps = 0;
  bool fills_sequences = false;     ///< training data is text, in sequences of --seq-len tokens
  int64_t micro_batch_size = 1;     ///< samples of a data-parallel rank per forward pass
  std::string base_model;           ///< with adapters: the base model's folder, or ORG/NAME
  std::string base_fingerprint;     ///< with adapters: of its config and weights
  bool resumes = false;             ///< `folder` is a checkpoint of this run
  bool changes_task = false;        ///< `folder` is for another task; its head is not used
  bool is_verified = false;         ///< `folder` was read completely and is intact
  std::vector<std::string> damage;  ///< of newer checkpoints, which are skipped
  /// The tokenizer's files and the folder's generation settings, for checkpoints. Read once, since
  /// the folder may be a checkpoint that is deleted when newer ones are saved.
  std::vector<NamedFile> files;
};

/// Throws Error for options that do not fit the model, the data or each other. `world_size` is that
/// of the launcher, 0 without one. With `whole`, the run resumes from it, whatever the options are.
TrainSetup make_setup(const TrainOptions& options, int world_size,
                      const std::optional<IntactCheckpoint>& whole = std::nullopt);

/// The ranks of a job that share this host's memory: all rank threads, or as many as the launcher
/// started here.
Range ranks_of_host(const ParallelConfig& layout);

/// Throws Error(kMemory) if `setup.planned` exceeds the available memory of `ranks` by more than a
/// forecast may be wrong (10 %), so that a run that fits is never refused. The error names the
/// options that fit, if any do; for a trained model adapters too.
void require_memory(const TrainSetup& setup, Range ranks, const AvailableMemory& available);
/// The same for ranks that use one GPU, of which `available` bytes are left.
void require_gpu_memory(const TrainSetup& setup, Range ranks, int64_t available);

/// Whether a glob (parallel/plan.h) matches a run of whole parts of a dotted name: "*.bias",
/// "norm" and "model.norm" match "model.norm.bias", "nor" does not.
bool matches_parts(const std::string& glob, const std::string& name);

/// The settings of single parameters that --param-group gives: "GLOB:SETTING=VALUE,...", with the
/// settings lr-factor and weight-decay. Where several groups match, the last one decides. Throws
/// Error(kUsage) for a text of another form, and for a glob that matches no trained parameter of
/// the model, with the nearest names.
OptimizerOptions::OwnSettings parameter_groups(const std::vector<std::string>& groups,
                                               Model& model);

}  // namespace cleave::inline train
