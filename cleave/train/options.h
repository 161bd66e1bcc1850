#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cleave/mesh/machine_options.h"
#include "cleave/planner/lora_flags.h"
#include "cleave/planner/options.h"

namespace cleave::inline train {

/// The options of `cleave train` and their defaults. Free of libtorch, so the front end can fill it
/// in without loading the library.
struct TrainOptions : LayoutOptions, LoraFlags, MachineOptions {
  std::string model = "llama-tiny";  ///< preset name or model folder
  std::vector<std::string> data;     ///< text, JSONL with `text`, chats, or JSONL rows of ids; each
                                     ///< may be FILE:WEIGHT
  std::string task;                  ///< empty = the model's
  double dpo_beta = 0.1;             ///< of task dpo
  std::string tokenizer;             ///< "bytes" or a folder; empty = the model's, else bytes
  std::string chat_template;         ///< "chatml" or a file; empty = the tokenizer's
  std::string train_on = "assistant";  ///< which tokens of chats
  std::string out;                     ///< run folder

  std::optional<int64_t> steps;  ///< 1000 if neither steps nor epochs is given
  std::optional<int64_t> epochs;
  int64_t batch_size = 8;        ///< global, in sequences, or pairs of task dpo
  int64_t micro_batch_size = 0;  ///< per data-parallel rank; 0 = its whole share of the batch, or
                                 ///< with a pipeline the size that gives 4 micro-batches per stage
  int64_t seq_len = 0;           ///< tokens; 0 = a resumed run's, else kDefaultSeqLen, or the
                                 ///< positions if fewer

  double lr = 3e-4;
  std::string schedule = "cosine";
  double min_lr = 0;                   ///< where the schedule ends
  std::optional<int64_t> warmup;       ///< steps; default 10 % of the run
  std::optional<int64_t> decay_steps;  ///< of schedule wsd; default 10 % of the run
  std::string optimizer = "adamw";
  std::array<double, 2> adam_betas{0.9, 0.95};
  double adam_eps = 1e-8;
  double weight_decay = 0.1;
  std::string decay_on = "matrices";
  std::vector<std::string> param_groups;  ///< GLOB:SETTING=VALUE,...
  double clip = 1.0;                      ///< global gradient norm; 0 = off
  double ema = 0;                         ///< decay of averaged weights; 0 = off
  std::string dtype;                      ///< empty = that of a resumed run, else fp32
  uint64_t seed = 0;

  int64_t save_every = 0;   ///< steps; 0 = at the end only
  int64_t keep_last = 0;    ///< checkpoints to keep; 0 = all
  bool async_save = false;  ///< write checkpoints while training continues
  bool resume = false;
  bool over_commit = false;  ///< start even if the forecast exceeds the memory

  std::vector<std::string> eval_data;
  int64_t eval_every = 0;  ///< steps; 0 = at the end only
  int64_t early_stop = 0;  ///< evaluations without improvement; 0 = off
  bool shuffle = true;
  bool packing = false;     ///< several chats or rows of ids share a sequence
  int64_t record_step = 0;  ///< step that is recorded on all ranks, from 1; 0 = none
  std::string log;          ///< "tensorboard": also write event files; empty = none

  std::string command;  ///< the command line as typed, for the report
};

}  // namespace cleave::inline train

namespace cleave::option {

/// What happens if a resumed run has another --dtype.
inline constexpr OnResume kOtherPrecision{
    .kind = OnResume::kWarn, .consequence = "weights and activations have another precision"};

/// --task.
inline Row task(std::string* target, std::string help) {
  return {target,
          "task",
          "",
          std::move(help),
          "the model's",
          Choices{"lm", "mlm", "classify", "multilabel", "regression", "dpo"}};
}
/// --dpo-beta.
inline Row dpo_beta(double* target) {
  return {target,     "dpo-beta",
          "X",        "factor of rewards in --task dpo; larger: closer to the reference model",
          "",         Limits{.low = 0, .high = 1000, .takes_low = false},
          kMustMatch, {.kind = OnResume::kWarn, .consequence = "the scale of the rewards changes"}};
}

/// Options for the model and the data.
inline std::vector<Row> input_rows(TrainOptions& o) {
  return {
      {&o.model, "model", "NAME|DIR|JSON",
       "preset, model or run folder, GGUF file, model of the Hugging Face cache (ORG/NAME), or a "
       "config.json with sizes"},
      {&o.data, "data", "FILES",
       "text, or JSONL with \"text\", \"input_ids\" or \"messages\" (chats); for classification "
       "and regression CSV with a header, or JSONL with \"label\"; for preferences JSONL with "
       "\"chosen\" and \"rejected\"; "
       "FILE:WEIGHT draws sequences in proportion",
       "required"},
      task(
          &o.task,
          "training task; multilabel learns several classes of each text, regression a number, dpo "
          "preferences"),
      dpo_beta(&o.dpo_beta),
      tokenizer(&o.tokenizer, "the model's, else bytes"),
      chat_template(&o.chat_template),
      train_on(&o.train_on),
      {&o.shuffle, "shuffle", "", "read the data in file order", "", {}, kMustMatch, kReordersData},
      {&o.packing,
       "packing",
       "",
       "put several chats, documents or rows of ids into a sequence; attention stays within each",
       "off",
       {},
       kMustMatch,
       kReordersData},
      {&o.seq_len, "seq-len", "N", "tokens per sequence",
       "a resumed run's, else 256, or the model's positions if fewer", kLength, kMustMatch},
      {&o.seed, "seed", "N", "seed of initial weights, dropout and data order", "", kSeeds,
       kMustMatch, kReordersData}};
}

/// Options for the length of the run.
inline std::vector<Row> step_rows(TrainOptions& o) {
  return {
      {&o.steps, "steps", "N", "optimizer steps", "1000", kSteps, kMustMatch},
      {&o.epochs, "epochs", "N", "passes over the data, instead of --steps", "", Limits{1, 1e6},
       kMustMatch},
      {&o.batch_size, "batch-size", "N", "sequences (--task dpo: pairs) per step over all ranks",
       "", kSequences, kMustMatch, kFixed},
      {&o.micro_batch_size, "micro-batch-size", "N",
       "sequences (--task dpo: pairs) per forward pass of a data-parallel rank",
       "its whole share; with --pp share / (4 x pp)", kSequences, kMustMatch}};
}

/// Options for how the weights are updated.
inline std::vector<Row> optimizer_rows(TrainOptions& o) {
  return {optimizer(&o.optimizer),
          {&o.lr, "lr", "RATE", "peak learning rate", "", Limits{0, 1e6}, kMustMatch},
          {&o.schedule, "schedule", "", "learning rate schedule after warm-up", "",
           Choices{"cosine", "linear", "constant", "wsd"}, kMustMatch},
          {&o.min_lr, "min-lr", "RATE", "learning rate at which the schedule ends", "",
           Limits{0, 1e6}, kMustMatch},
          {&o.warmup, "warmup", "N", "steps in which the learning rate rises to --lr",
           "10 % of the steps", kSteps, kMustMatch},
          {&o.decay_steps, "decay-steps", "N",
           "last steps, in which the learning rate of schedule wsd falls to --min-lr",
           "10 % of the steps", kSteps, kMustMatch},
          {&o.adam_betas, "adam-betas", "B1,B2", "decay rates of Adam's moments", "",
           Limits{.low = 0, .high = 1, .takes_high = false}, kMustMatch},
          {&o.adam_eps, "adam-eps", "X", "Adam's epsilon", "1e-8", Limits{1e-30, 1}, kMustMatch},
          {&o.weight_decay, "weight-decay", "X", "weight decay, multiplied by the learning rate",
           "", Limits{0, 1000}, kMustMatch},
          {&o.decay_on, "decay-on", "", "parameters with weight decay", "",
           Choices{"matrices", "all"}, kMustMatch},
          {&o.param_groups, "param-group", "GLOB:SETTING=VALUE",
           "multiplies the learning rate of these parameters (lr-factor), or sets their weight "
           "decay (weight-decay); may be repeated",
           "none", Each{}, kMustMatch},
          {&o.clip, "clip", "NORM", "maximum global gradient norm; 0 is off", "1.0", Limits{0, 1e9},
           kMustMatch},
          {&o.ema, "ema", "DECAY",
           "also keep an exponential moving average of the weights, which evaluation uses and "
           "convert --ema writes; 0 is off",
           "off", Limits{.low = 0, .high = 1, .takes_high = false}, kMustMatch},
          {&o.dtype, "dtype", "",
           "dtype of weights and activations; bf16 and fp16 keep fp32 master weights, fp16 scales "
           "the loss",
           "a resumed run's, else fp32", Choices{"fp32", "bf16", "fp16", "fp64"}, kMustMatch,
           kOtherPrecision},
          reduce_dtype(&o.reduce_dtype)};
}

/// Options for what the run writes.
inline std::vector<Row> output_rows(TrainOptions& o) {
  return {{&o.out, "out", "DIR", "run folder: checkpoints, metrics, report", "required"},
          {&o.save_every, "save-every", "STEPS", "steps between checkpoints", "at the end only",
           kSteps, kMustMatch},
          {&o.keep_last, "keep-last", "N", "newest checkpoints to keep", "all", kSteps, kMustMatch},
          {&o.async_save,
           "async-save",
           "",
           "continue training while a checkpoint is written; needs memory for a copy of it",
           "off",
           {},
           kMustMatch},
          {&o.resume,
           "resume",
           "",
           "resume from the newest checkpoint in --out; without one, start from the beginning",
           "off",
           {},
           kMustMatch},
          {&o.eval_data, "eval-data", "FILES", "evaluation data", "none"},
          {&o.eval_every, "eval-every", "STEPS", "steps between evaluations", "at the end only",
           kSteps, kMustMatch},
          {&o.early_stop, "early-stop", "N",
           "end after N evaluations in a row whose loss is not below the best one; keeps the best "
           "checkpoint",
           "off", kSteps, kMustMatch},
          {&o.record_step, "record-step", "STEP",
           "record what every rank does in this step: replay.html, and replay.json for Perfetto",
           "none", kSteps, kMustMatch},
          {&o.log, "log", "", "write each step's metrics as TensorBoard event files too", "none",
           Choices{"tensorboard"}}};
}

/// The options of `cleave train`.
inline std::vector<Section> sections(TrainOptions& o) {
  return {{"model and data", input_rows(o)},
          {"steps", step_rows(o)},
          {"optimizer", optimizer_rows(o)},
          {"adapters", rows(static_cast<LoraFlags&>(o))},
          {"output", output_rows(o)},
          {"ranks", joined(joined(rows(static_cast<LayoutOptions&>(o)),
                                  rows(static_cast<MachineOptions&>(o))),
                           {{&o.over_commit, "over-commit", "",
                             "start even if the forecast exceeds the available memory", "off"}})}};
}

}  // namespace cleave::option

/// Trains a model. The front end finds this symbol in libcleave by name. Throws Error, and Stopped
/// (base/stop.h) after a stop by signal.
extern "C" void cleave_train(const cleave::TrainOptions& options);
