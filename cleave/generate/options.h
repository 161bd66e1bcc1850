#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cleave/mesh/machine_options.h"

namespace cleave {

/// What every command that runs a model can be told. Free of libtorch, as all of this file.
struct RunOptions : MachineOptions {
  std::string model;      ///< folder of a model or of a run
  std::string tokenizer;  ///< "bytes" or a folder; empty = the model's
  int tp = 0;             ///< 0 = 1, or the whole world under a launcher
  std::string dtype;      ///< empty = the file's
  bool json = false;
};

/// Everything `cleave generate` can be told.
struct GenerateOptions : RunOptions {
  std::vector<std::string> prompts;              ///< texts
  std::vector<std::vector<int64_t>> prompt_ids;  ///< rows of ids, instead of texts
  int64_t max_new_tokens = 64;
  int64_t num_beams = 1;
  int64_t num_return_sequences = 1;
  double length_penalty = 1.0;
  std::string early_stopping = "false";  ///< false | true | never, as transformers
  int64_t no_repeat_ngram_size = 0;
  double repetition_penalty = 1.0;
  bool do_sample = false;
  double temperature = 1.0;
  int64_t top_k = 50;  ///< 0 = off
  double top_p = 1.0;
  uint64_t seed = 0;
  std::optional<int64_t> eos_id;  ///< the model's
  std::vector<std::string> stop;  ///< texts that end a sequence
  bool stream = true;
};

/// Everything `cleave eval` can be told.
struct EvalOptions : RunOptions {
  std::vector<std::string> data;
  int64_t seq_len = 256;
  int64_t batch_size = 8;
};

/// Everything `cleave predict` can be told.
struct PredictOptions : RunOptions {
  std::vector<std::string> texts;
  std::string text_file;  ///< a text a line, JSONL with `text`, or CSV
  int64_t top_k = 5;      ///< words shown for a masked place
  int64_t seq_len = 0;    ///< tokens read of a text; 0 = as many as the model has positions
  int64_t batch_size = 16;
};

}  // namespace cleave

/// Found in libcleave by these names. They print to stdout and throw Error.
extern "C" void cleave_generate(const cleave::GenerateOptions& options);
extern "C" void cleave_eval(const cleave::EvalOptions& options);
extern "C" void cleave_predict(const cleave::PredictOptions& options);
