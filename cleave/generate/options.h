#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cleave/mesh/machine_options.h"

namespace cleave {

/// Options of all commands that run a model. This file is free of libtorch.
struct RunOptions : MachineOptions {
  std::string model;      ///< folder of a model or of a run
  std::string tokenizer;  ///< "bytes" or a folder; empty = the model's
  int tp = 0;             ///< 0 = all ranks of the launcher, 1 without one
  std::string dtype;      ///< empty = that of the files
  bool json = false;
};

/// Options of `cleave generate`.
struct GenerateOptions : RunOptions {
  std::vector<std::string> prompts;              ///< texts
  std::vector<std::vector<int64_t>> prompt_ids;  ///< token ids, instead of texts
  int64_t max_new_tokens = 64;
  int64_t num_beams = 1;
  int64_t num_return_sequences = 1;
  double length_penalty = 1.0;
  std::string early_stopping = "false";  ///< false | true | never, as in transformers
  int64_t no_repeat_ngram_size = 0;
  double repetition_penalty = 1.0;
  bool do_sample = false;
  double temperature = 1.0;
  int64_t top_k = 50;  ///< 0 = off
  double top_p = 1.0;
  uint64_t seed = 0;
  std::optional<int64_t> eos_id;  ///< default: the model's
  std::vector<std::string> stop;  ///< texts that end a sequence
  bool stream = true;
};

/// Options of `cleave eval`.
struct EvalOptions : RunOptions {
  std::vector<std::string> data;
  int64_t seq_len = 0;  ///< tokens per sequence; 0 = that of the run, else 256
  int64_t batch_size = 8;
};

/// Options of `cleave predict`.
struct PredictOptions : RunOptions {
  std::vector<std::string> texts;
  std::string text_file;  ///< one text per line, JSONL with `text`, or CSV
  int64_t top_k = 5;      ///< words shown per masked token
  int64_t seq_len = 0;    ///< tokens read per text; 0 = that of the run, else the positions
  int64_t batch_size = 16;
};

}  // namespace cleave

/// The front end finds these symbols in libcleave by name. They print to stdout and throw Error.
extern "C" void cleave_generate(const cleave::GenerateOptions& options);
extern "C" void cleave_eval(const cleave::EvalOptions& options);
extern "C" void cleave_predict(const cleave::PredictOptions& options);
