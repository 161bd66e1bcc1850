#pragma once
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "cleave/report/metrics.h"
#include "cleave/train/options.h"
#include "tests/support/paths.h"
#include "tests/support/temp_folder.h"

namespace cleave::test {

/// The config.json of a Llama of two blocks for the byte tokenizer.
inline constexpr std::string_view kSmallestLlama =
    R"({"architectures":["LlamaForCausalLM"],"model_type":"llama","vocab_size":257,
  "hidden_size":16,"intermediate_size":24,"num_hidden_layers":2,"num_attention_heads":2,
  "max_position_embeddings":32})";

/// Four steps on the license text with the byte tokenizer, from `folder`/tiny.json, which gets the
/// text `config`, to `folder`/run. The results do not depend on the number of cores.
inline TrainOptions small_run(const TempFolder& folder, std::string_view config = kSmallestLlama) {
  std::ofstream(folder / "tiny.json") << config;
  TrainOptions o;
  o.model = folder / "tiny.json";
  o.data = {test::source_file("LICENSE")};
  o.out = folder / "run";
  o.seq_len = 8;
  o.batch_size = 4;
  o.steps = 4;
  o.gemm = "mkl";
  o.threads_per_rank = 1;
  return o;
}

/// Trains; returns what was measured in each step.
inline std::vector<StepMetrics> steps_of(const TrainOptions& options) {
  cleave_train(options);
  return read_metrics(options.out + "/metrics.jsonl");
}

/// Trains; returns the loss of each step.
inline std::vector<double> losses(const TrainOptions& options) {
  std::vector<double> out;
  for (const StepMetrics& m : steps_of(options)) out.push_back(m.loss);
  return out;
}

}  // namespace cleave::test
