#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cleave/checkpoint/run_folder.h"
#include "cleave/data/batch.h"
#include "cleave/model/model.h"
#include "cleave/optim/optimizer.h"
#include "cleave/planner/forecast.h"
#include "cleave/train/options.h"
#include "cleave/train/task.h"

namespace cleave {

/// A training run worked out from its options: what is trained, on what, how long. Immutable and
/// shared by the rank threads of a process.
struct TrainSetup {
  TrainSetup(TrainOptions o, std::optional<ModelFolder> f)
      : options(std::move(o)),
        config(f ? f->config : Json::parse("null", "config.json")),
        folder(std::move(f)),
        resumes(options.resume) {}

  TrainOptions options;
  Json config;                                 ///< of the model, as it will be saved
  std::optional<ModelFolder> folder;           ///< whose weights to load; none for a preset
  std::shared_ptr<const Tokenizer> tokenizer;  ///< null where only ids come in
  std::string tokenizer_folder;                ///< whose files they are; "" = bytes or none
  TrainLayout layout;
  std::optional<Forecast> planned;  ///< of a step; none where the model cannot be run on shapes
  std::shared_ptr<const Dataset> data;
  std::shared_ptr<const Dataset> eval_data;  ///< null without --eval-data
  BatchRules batches;                        ///< how rows of both become batches
  SampleOrder order;
  OptimizerOptions optimizer;
  LrSchedule schedule;
  int64_t num_steps = 0;
  int64_t micro_batch_size = 1;  ///< rows of a data-parallel rank that go forward at once
  bool resumes = false;          ///< `folder` is a checkpoint of this run
  bool changes_task = false;     ///< `folder` is a model for another task, whose head is left out
  bool is_verified = false;      ///< it was read as it was chosen, and is whole
  std::vector<std::string> damage;  ///< of newer checkpoints, which are left out
  /// What checkpoints carry of the tokenizer, and the folder's generation settings: read once, for
  /// the folder may be a checkpoint that makes way for newer ones.
  std::vector<NamedFile> files;
};

/// Throws Error for options that do not fit the model, the data or each other. `world_size` is that
/// of the launcher, 0 without one. With `whole` the run goes on from there, whatever the options
/// say.
TrainSetup make_setup(const TrainOptions& options, int world_size,
                      const std::optional<WholeCheckpoint>& whole = std::nullopt);

}  // namespace cleave
