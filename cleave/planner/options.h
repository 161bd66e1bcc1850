#pragma once
#include <cstdint>
#include <string>

namespace cleave {

/// The flags for how a model is distributed over ranks. This header does not include libtorch.
struct LayoutOptions {
  int tp = 0;                ///< tensor-parallel ranks; 0 = 1, or a launcher's world / dp / pp
  int dp = 1;                ///< data-parallel ranks
  int pp = 1;                ///< pipeline ranks
  int virtual_pipeline = 1;  ///< pipeline stages a rank
  std::string schedule_pp;   ///< gpipe | 1f1b | interleaved | zero-bubble; empty = by the stages
  bool sequence_parallel = false;  ///< the model's plan that also shards sequences
  std::string plan;                ///< JSON file; empty = the model's
  int zero = 0;                    ///< 1: shards master weights and moments over dp
  bool fsdp = false;               ///< shards weights and gradients too
  std::string recompute = "none";  ///< none | full | selective
};

/// The options of `cleave plan`.
struct PlanOptions : LayoutOptions {
  std::string model = "llama-tiny";  ///< preset, model folder or config.json
  int64_t vocab_size = 32000;        ///< of a preset
  int ranks = 0;                    ///< rank all layouts of this many ranks; 0 = only the given one
  std::string memory;               ///< a rank's limit, "8GiB"; empty = this machine's share
  int64_t batch_size = 8;           ///< global, in sequences
  int64_t micro_batch_size = 0;     ///< per data-parallel rank; 0 as in training
  int64_t seq_len = 256;            ///< tokens
  std::string dtype = "fp32";       ///< fp32 | bf16 | fp16 | fp64
  std::string optimizer = "adamw";  ///< adamw | adam | sgd
  bool parameters = false;          ///< list every parameter's layout
  std::string draw_schedule;        ///< SVG file to write; empty = none
  bool json = false;
};

}  // namespace cleave

/// `cleave plan`, which the front end looks up in libcleave by this name. Prints to stdout. Throws
/// Error.
extern "C" void cleave_plan(const cleave::PlanOptions& options);
