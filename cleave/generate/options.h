#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cleave/mesh/machine_options.h"
#include "cleave/train/options.h"

namespace cleave::inline generation {

/// Options of all commands that run a model. This file is free of libtorch.
struct RunOptions : MachineOptions {
  std::string model;      ///< folder of a model or of a run
  std::string adapter;    ///< folder of an adapter (LoRA) for the model; empty = none
  std::string tokenizer;  ///< "bytes", or a folder or file; empty = the model's
  int tp = 0;             ///< 0 = all ranks of the launcher / ep, 1 without one
  int ep = 1;             ///< ranks that divide the experts among them; each runs all other layers
  std::string dtype;      ///< empty = that of the files
  std::string kv_cache_dtype = "auto";  ///< auto | bf16 | int8
  bool json = false;
};

/// Options of `cleave generate`.
struct GenerateOptions : RunOptions {
  std::vector<std::string> prompts;              ///< texts
  std::string prompt_file;                       ///< the front end reads it into the other two
  std::vector<std::vector<int64_t>> prompt_ids;  ///< token ids, instead of texts
  int64_t max_new_tokens = 64;
  int64_t batch_size = 64;  ///< sequences that run together
  int64_t num_beams = 1;
  int64_t num_return_sequences = 1;
  // Without a value: those of the model's generation_config.json, if it has them.
  std::optional<double> length_penalty;         ///< else 1
  std::string early_stopping;                   ///< as in transformers; empty: else false
  std::optional<int64_t> no_repeat_ngram_size;  ///< else 0 = off
  std::optional<double> repetition_penalty;     ///< else 1 = off
  bool do_sample = false;
  std::optional<double> temperature;  ///< else 1
  std::optional<int64_t> top_k;       ///< else 50; 0 = off
  std::optional<double> top_p;        ///< else 1 = off
  uint64_t seed = 0;
  std::optional<int64_t> eos_id;  ///< default: the model's
  std::vector<std::string> stop;  ///< texts that end a sequence
  bool stream = true;
  bool chat = false;  ///< answers the prompts, or messages from stdin; max_new_tokens is per answer
  int64_t record_step = 0;  ///< step that is recorded on all ranks, from 1; 0 = none
  std::string out;          ///< folder for the recorded step
};

/// Options of `cleave eval`.
struct EvalOptions : RunOptions {
  std::vector<std::string> data;
  std::string task;       ///< "dpo" for preferences; empty = the model's
  std::string reference;  ///< of task dpo: folder of a model; empty = an adapter's base model
  double dpo_beta = 0.1;  ///< of task dpo
  int64_t seq_len = 0;    ///< tokens per sequence; 0 = that of the run, else 256
  int64_t batch_size = 8;
};

/// Options of `cleave predict`.
struct PredictOptions : RunOptions {
  std::vector<std::string> texts;
  std::vector<std::string> second_texts;  ///< one for each of `texts`, or none
  std::string text_file;                  ///< one text per line, JSONL or CSV
  int64_t top_k = 5;                      ///< words shown per masked token
  int64_t seq_len = 0;  ///< tokens read per text; 0 = that of the run, else the positions
  int64_t batch_size = 16;
};

}  // namespace cleave::inline generation

namespace cleave::option {

/// --model of a command that needs trained weights.
inline Row model_folder(std::string* target) {
  return {target, "model", "DIR",
          "model or run folder, GGUF file, or ORG/NAME of the Hugging Face cache", "required"};
}

/// --adapter of the same commands.
inline Row adapter_folder(std::string* target) {
  return {target, "adapter", "DIR", "LoRA adapter for the model: a PEFT folder or a run folder",
          "none"};
}

/// --ep of commands without data-parallel ranks.
inline Row expert_parallel(int* target) {
  return {target,    "ep",
          "N",       "ranks that divide the experts among them; each runs all other layers",
          "",        kRanks,
          kMustMatch};
}

/// How a model that is not trained is spread over ranks. `own`: the axes and other rows of the
/// command.
inline Section rank_section(RunOptions& o, std::vector<Row> own) {
  own.push_back({&o.dtype, "dtype", "",
                 "dtype of weights and activations; int8, int4 and int4_sym (without "
                 "minimums) apply to the weights, and activations are then fp32",
                 "the file's", Choices{"fp32", "bf16", "int8", "int4", "int4_sym", "fp64"},
                 kMustMatch});
  return {"ranks", joined(std::move(own), rows(o))};
}

/// --kv-cache-dtype of commands that run language models.
inline Row kv_cache_dtype(RunOptions& o) {
  return {&o.kv_cache_dtype,
          "kv-cache-dtype",
          "",
          "dtype of keys and values, on CPUs: int8 has a scale for each token and head; auto is "
          "bf16 with --dtype int8 or int4, else the dtype of activations",
          "",
          Choices{"auto", "bf16", "int8"},
          kMustMatch};
}

/// How the next tokens are chosen.
inline std::vector<Row> search_rows(GenerateOptions& o) {
  return {
      {&o.max_new_tokens, "max-new-tokens", "N", "maximum number of new tokens",
       "64; with --chat 512", kLength, kMustMatch},
      {&o.batch_size, "batch-size", "N",
       "sequences decoded together; a finished sequence makes room for the next prompt", "",
       kSequences, kMustMatch},
      {&o.num_beams, "num-beams", "N", "beams of beam search; 1 is greedy search", "",
       Limits{1, 1024}, kMustMatch},
      {&o.num_return_sequences, "num-return-sequences", "N", "continuations per prompt", "",
       Limits{1, 1024}, kMustMatch},
      {&o.length_penalty, "length-penalty", "X",
       "above 0, beam search favors long texts; below 0, short texts", "the model's, else 1",
       Limits{-100, 100}, kMustMatch},
      {&o.early_stopping, "early-stopping", "",
       "beam search stops with num-beams finished texts (true), when a better one is unlikely "
       "(false) or impossible (never)",
       "the model's, else false", Choices{"true", "false", "never"}, kMustMatch},
      {&o.no_repeat_ngram_size, "no-repeat-ngram-size", "N",
       "no N-gram of tokens occurs twice; 0 is off", "the model's, else 0", kTokens, kMustMatch},
      {&o.repetition_penalty, "repetition-penalty", "X",
       "above 1 makes tokens of the text so far less likely", "the model's, else 1",
       Limits{0.001, 1000}, kMustMatch},
      {&o.eos_id, "eos-id", "ID", "id of the end-of-text token", "the model's", kTokens},
      {&o.stop, "stop", "TEXT", "text that ends a continuation; may be repeated", "", Each{},
       kMustMatch}};
}

/// How tokens are drawn.
inline std::vector<Row> sampling_rows(GenerateOptions& o) {
  return {
      {&o.do_sample, "do-sample", "", "sample tokens by their probability", "off", {}, kMustMatch},
      {&o.temperature, "temperature", "X",
       "divides the logits; below 1 favors likely tokens; 0 takes the likeliest (no sampling)",
       "the model's, else 1", Limits{0, 1e6}, kMustMatch},
      {&o.top_k, "top-k", "N", "sample from the N likeliest tokens; 0 is off",
       "the model's, else 50", kTokens, kMustMatch},
      {&o.top_p, "top-p", "P", "sample from the likeliest tokens with total probability P",
       "the model's, else 1", Limits{.low = 0, .high = 1, .takes_low = false}, kMustMatch},
      {&o.seed, "seed", "N", "seed of sampling", "", kSeeds, kMustMatch}};
}

/// The options of `cleave generate`. The ranks compare the prompts by checksum.
inline std::vector<Section> sections(GenerateOptions& o) {
  return {{"model and prompts",
           {model_folder(&o.model),
            adapter_folder(&o.adapter),
            {&o.prompts, "prompt", "TEXT", "text to continue; may be repeated", "", Each{}},
            {&o.prompt_file, "prompt-file", "FILE",
             "one prompt per line, - is stdin; .jsonl: objects with \"prompt\", \"text\" or "
             "\"input_ids\""},
            {&o.prompt_ids, "prompt-ids", "1,2,3",
             "token ids to continue, without a tokenizer; may be repeated", "", kTokens},
            {&o.chat, "chat", "",
             "answer with the model's chat template: the prompts, or messages from the terminal or "
             "stdin",
             "off"},
            tokenizer(&o.tokenizer)}},
          {"decoding", search_rows(o)},
          {"sampling", sampling_rows(o)},
          {"output",
           {{&o.json, "json", "", "print one JSON object per prompt, each on one line", "off"},
            {&o.stream, "stream", "", "print each text when it is complete, not token by token"},
            {&o.record_step, "record-step", "STEP",
             "record what every rank does in this step, into --out: step 1 reads the prompts and "
             "chooses the first token, step 2 chooses the second one",
             "none", kSteps, kMustMatch},
            {&o.out, "out", "DIR",
             "folder for replay.html, and replay.json for Perfetto, of --record-step", "none"}}},
          rank_section(o, {tensor_parallel(&o.tp), expert_parallel(&o.ep), kv_cache_dtype(o)})};
}

/// The options of `cleave eval`. The ranks compare the data by checksum.
inline std::vector<Section> sections(EvalOptions& o) {
  return {{"model and data",
           {model_folder(&o.model),
            adapter_folder(&o.adapter),
            {&o.data, "data", "FILES",
             "as for train: text, CSV, or JSONL with \"text\", \"input_ids\", \"messages\", "
             "\"label\", or \"chosen\" and \"rejected\"",
             "required"},
            task(&o.task, "task that is measured; dpo measures preferences"),
            dpo_beta(&o.dpo_beta),
            {&o.reference, "reference", "DIR", "reference model of --task dpo",
             "an adapter's base model"},
            tokenizer(&o.tokenizer),
            {&o.seq_len, "seq-len", "N", "tokens per sequence", "the run's, else 256", kLength},
            {&o.batch_size, "batch-size", "N", "sequences per forward pass", "", kSequences,
             kMustMatch},
            {&o.json, "json", "",
             "print one JSON object: loss, and perplexity, accuracy, errors or rewards", "off"}}},
          rank_section(o, {tensor_parallel(&o.tp), expert_parallel(&o.ep), kv_cache_dtype(o)})};
}

/// The options of `cleave predict`. The ranks compare the texts by checksum.
inline std::vector<Section> sections(PredictOptions& o) {
  return {
      {"model and texts",
       {model_folder(&o.model),
        adapter_folder(&o.adapter),
        {&o.texts, "text", "TEXT",
         "text to classify, or with mask tokens (such as [MASK]) to fill in; may be repeated", "",
         Each{}},
        {&o.second_texts, "text-pair", "TEXT",
         "second text of a pair, such as a hypothesis; one for each --text", "none", Each{}},
        {&o.text_file, "text-file", "FILE",
         "one text per line; .jsonl and .csv: rows with text, review, sentence or comment_text, or "
         "with two texts, such as premise and hypothesis",
         "none"},
        tokenizer(&o.tokenizer),
        {&o.seq_len, "seq-len", "N", "maximum tokens per text",
         "the run's, else the model's positions", kLength},
        {&o.batch_size, "batch-size", "N", "texts per forward pass", "", kSequences, kMustMatch}}},
      {"output",
       {{&o.top_k, "top-k", "N", "words to print per mask token", "", Limits{1, kTokens.high}},
        {&o.json, "json", "", "print one JSON object per text, each on one line", "off"}}},
      rank_section(o, {tensor_parallel(&o.tp)})};
}

}  // namespace cleave::option

/// The front end finds these symbols in libcleave by name. They print to stdout and throw Error.
extern "C" void cleave_generate(const cleave::GenerateOptions& options);
extern "C" void cleave_eval(const cleave::EvalOptions& options);
extern "C" void cleave_predict(const cleave::PredictOptions& options);
