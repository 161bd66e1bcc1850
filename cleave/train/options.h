#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cleave/mesh/machine_options.h"
#include "cleave/planner/options.h"

namespace cleave {

/// The options of `cleave train` and their defaults. Free of libtorch, so the front end can fill it
/// in without loading the library.
struct TrainOptions : LayoutOptions, MachineOptions {
  std::string model = "llama-tiny";  ///< preset name or model folder
  std::vector<std::string> data;     ///< text, JSONL with `text`, or JSONL rows of ids
  std::string task;                  ///< lm | mlm | classify; empty = the model's
  std::string tokenizer;             ///< "bytes" or a folder; empty = the model's, else bytes
  std::string out;                   ///< run folder

  std::optional<int64_t> steps;  ///< 1000 if neither steps nor epochs is given
  std::optional<int64_t> epochs;
  int64_t batch_size = 8;        ///< global, in sequences
  int64_t micro_batch_size = 0;  ///< per data-parallel rank; 0 = its whole share of the batch, or
                                 ///< with a pipeline the size that gives 4 micro-batches per stage
  int64_t seq_len = 256;         ///< tokens

  double lr = 3e-4;
  std::string schedule = "cosine";  ///< cosine | linear | constant
  std::optional<int64_t> warmup;    ///< steps; default 10 % of the run
  std::string optimizer = "adamw";  ///< adamw | adam | sgd
  double beta1 = 0.9, beta2 = 0.95;
  double adam_eps = 1e-8;
  double weight_decay = 0.1;
  std::string decay_on = "matrices";  ///< matrices | all
  double clip = 1.0;                  ///< global gradient norm; 0 = off
  std::string dtype = "fp32";         ///< fp32 | bf16 | fp16 | fp64
  uint64_t seed = 0;

  int64_t save_every = 0;   ///< steps; 0 = at the end only
  int64_t keep_last = 0;    ///< checkpoints to keep; 0 = all
  bool async_save = false;  ///< write checkpoints while training continues
  bool resume = false;
  bool over_commit = false;  ///< start even if the forecast exceeds the memory

  std::vector<std::string> eval_data;
  int64_t eval_every = 0;  ///< steps; 0 = at the end only
  bool shuffle = true;

  std::string command;  ///< the command line as typed, for the report
};

}  // namespace cleave

/// Trains a model. The front end finds this symbol in libcleave by name. Throws Error, and Stopped
/// (base/stop.h) after a stop by signal.
extern "C" void cleave_train(const cleave::TrainOptions& options);
