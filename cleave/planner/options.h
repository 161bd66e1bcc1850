#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "cleave/mesh/machine_options.h"
#include "cleave/planner/lora_flags.h"

namespace cleave::inline planner {

/// The flags for how a model is distributed over ranks. This header does not include libtorch.
struct LayoutOptions {
  int tp = 0;                ///< tensor-parallel ranks; 0 = 1, or a launcher's world / dp / pp
  int dp = 1;                ///< data-parallel ranks
  int pp = 1;                ///< pipeline ranks
  int ep = 1;                ///< data-parallel ranks that share out the experts
  int virtual_pipeline = 1;  ///< pipeline stages a rank
  std::string schedule_pp;   ///< empty = by the stages
  bool sequence_parallel = false;  ///< the model's plan that also shards sequences
  std::string plan;                ///< JSON file; empty = the model's
  int zero = 0;                    ///< 1: shards master weights and moments over dp
  bool fsdp = false;               ///< shards weights and gradients too
  std::string recompute = "none";
  std::string reduce_dtype;  ///< in which gradients cross dp; empty = that of master weights
};

/// Tokens per sequence if no flag says it; fewer if the model has fewer positions.
inline constexpr int64_t kDefaultSeqLen = 256;

/// The options of `cleave plan`.
struct PlanOptions : LayoutOptions, LoraFlags {
  std::string model = "llama-tiny";  ///< preset, model folder or config.json
  int64_t vocab_size = 0;            ///< of a preset; 0 = its published model's
  int ranks = 0;                 ///< rank all layouts of this many ranks; 0 = only the given one
  std::string memory;            ///< a rank's limit, "8GiB"; empty = this machine's share
  int64_t batch_size = 8;        ///< global, in sequences
  int64_t micro_batch_size = 0;  ///< per data-parallel rank; 0 as in training
  int64_t seq_len = 0;           ///< tokens; 0 = kDefaultSeqLen, or the positions if fewer
  std::string dtype = "fp32";
  std::string optimizer = "adamw";
  std::vector<std::string> fixed_flags;  ///< of LayoutOptions: what every layout of a cluster has
  std::string cluster;        ///< preset, "here" or JSON file; empty = this program's own ranks
  std::string tokens;         ///< of a training run on the cluster, "300B"; empty = none
  std::string html;           ///< page to write of the plan on the cluster; empty = none
  std::string runs;           ///< CSV file of published runs to predict; empty = none
  bool parameters = false;    ///< list every parameter's layout
  std::string draw_schedule;  ///< SVG file to write; empty = none
  bool json = false;
  bool dry_run = false;  ///< of one rank: its program and what it sends
  int rank = 0;          ///< of the dry run
};

}  // namespace cleave::inline planner

namespace cleave::option {

/// The options of LayoutOptions, except --reduce-dtype, which --help lists after --dtype. The ranks
/// compare the layout that follows from them.
inline std::vector<Row> rows(LayoutOptions& o) {
  return {
      tensor_parallel(&o.tp),
      {&o.dp, "dp", "N", "data-parallel ranks; each computes a share of the batch", "", kRanks},
      {&o.pp, "pp", "N", "pipeline-parallel ranks; each holds some of the layers", "", kRanks},
      data_expert_parallel(&o.ep),
      plan(&o.plan),
      {&o.sequence_parallel, "sequence-parallel", "",
       "shard activations along the sequence between tensor-parallel regions", "off"},
      {&o.virtual_pipeline, "virtual-pipeline", "N", "pipeline stages per pipeline rank", "",
       kRanks},
      {&o.schedule_pp, "schedule-pp", "", "pipeline schedule", "1f1b, or interleaved",
       Choices{"gpipe", "1f1b", "interleaved", "zero-bubble"}},
      {&o.zero, "zero", "0|1",
       "1 shards master weights and optimizer moments over data-parallel ranks", "", Limits{0, 1}},
      {&o.fsdp, "fsdp", "", "also shard weights and gradients over data-parallel ranks", "off"},
      {&o.recompute, "recompute", "",
       "activations that backward recomputes instead of keeping them", "",
       Choices{"none", "full", "selective"}}};
}

/// --optimizer.
inline Row optimizer(std::string* target) {
  const char* const help = "optimizer; muon updates the matrices of the blocks, adamw the rest";
  return {target,     "optimizer", "", help, "", Choices{"adamw", "adam", "sgd", "muon"},
          kMustMatch, kFixed};
}

/// --reduce-dtype.
inline Row reduce_dtype(std::string* target) {
  const char* const help =
      "dtype in which gradients pass between data-parallel ranks; bf16 sends half the bytes, and "
      "sums are still made in fp32";
  return {target,    "reduce-dtype", "", help, "that of master weights", Choices{"fp32", "bf16"},
          kMustMatch};
}

/// Ranks that `cleave plan` takes: those of a run, more with --cluster.
inline constexpr Limits kClusterRanks{.low = 1, .high = 1e6};
inline constexpr Limits kClusterRankIds{.low = 0, .high = 1e6 - 1};

/// The options of `cleave plan`.
inline std::vector<Section> sections(PlanOptions& o) {
  return {
      {"model and batch",
       {{&o.model, "model", "NAME|DIR|JSON", "preset, model folder, or a config.json with sizes"},
        {&o.vocab_size, "vocab-size", "N", "vocabulary size of a preset",
         "that of the published model", Limits{1, kTokens.high}},
        {&o.batch_size, "batch-size", "N", "sequences per step over all ranks", "", kSequences},
        {&o.micro_batch_size, "micro-batch-size", "N",
         "sequences per forward pass of a data-parallel rank", "as in train", kSequences},
        {&o.seq_len, "seq-len", "N", "tokens per sequence",
         "256, or the model's positions if fewer", kLength},
        {&o.dtype, "dtype", "", "dtype of forward and backward", "",
         Choices{"fp32", "bf16", "fp16", "fp64"}},
        reduce_dtype(&o.reduce_dtype),
        optimizer(&o.optimizer)}},
      {"layout", joined({{&o.ranks, "ranks", "N", "instead list all layouts of N ranks, best first",
                          "off", kClusterRanks},
                         {&o.memory, "memory", "SIZE", "memory limit per rank, e.g. 8GiB or 80G",
                          "this host's memory / ranks"}},
                        rows(static_cast<LayoutOptions&>(o)))},
      {"adapters", rows(static_cast<LoraFlags&>(o))},
      {"cluster",
       {{&o.cluster, "cluster", "NAME|FILE.json",
         "list the best layouts of --ranks devices of a cluster: here, a100-80gb, h100-80gb, h200, "
         "b200, mi300x, ... or a file",
         "off"},
        {&o.tokens, "tokens", "COUNT",
         "also print days and device-hours for this many tokens, e.g. 300B", "none"},
        {&o.html, "html", "FILE.html", "also write a page with sliders for the layouts", "none"},
        {&o.runs, "runs", "FILE.csv", "predict a table of published runs", "none"}}},
      {"dry run of one rank",
       {{&o.dry_run, "dry-run", "",
         "list what one rank holds and sends in a step, without memory; --ranks is then tp x pp x "
         "dp",
         "off"},
        {&o.rank, "rank", "N", "the rank of a dry run, from 0", "", kClusterRankIds}}},
      {"output",
       {{&o.parameters, "parameters", "", "list how every parameter is sharded", "off"},
        {&o.draw_schedule, "draw-schedule", "FILE.svg", "draw the pipeline schedule", "none"},
        {&o.json, "json", "", "print one line of JSON", "off"}}}};
}

}  // namespace cleave::option

/// `cleave plan`, which the front end looks up in libcleave by this name. Prints to stdout. Throws
/// Error.
extern "C" void cleave_plan(const cleave::PlanOptions& options);
