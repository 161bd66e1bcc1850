#pragma once
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/paths.h"

namespace cleave::test {

/// A config.json with 18 thousand weights. A step takes a millisecond, a checkpoint little more.
inline constexpr char kTinyLlama[] =
    R"({"architectures":["LlamaForCausalLM"],"model_type":"llama","hidden_size":24,
"intermediate_size":20,"num_hidden_layers":2,"num_attention_heads":6,"num_key_value_heads":2,
"head_dim":4,"max_position_embeddings":64,"rms_norm_eps":1e-5,"hidden_act":"silu",
"tie_word_embeddings":false,"rope_theta":10000.0,"torch_dtype":"float32"})";

/// Lines of a run's metrics.jsonl.
inline std::vector<nlohmann::json> metrics_of(const std::string& run) {
  std::vector<nlohmann::json> out;
  std::ifstream file(run + "/metrics.jsonl");
  for (std::string line; std::getline(file, line);) out.push_back(nlohmann::json::parse(line));
  return out;
}

/// Arguments of a small `cleave train` whose results do not depend on the number of cores.
inline std::vector<std::string> train(const std::string& out,
                                      const std::vector<std::string>& more = {}) {
  std::vector<std::string> words{"train",
                                 "--data",
                                 test::source_file("LICENSE"),
                                 "--out",
                                 out,
                                 "--seq-len",
                                 "32",
                                 "--batch-size",
                                 "4",
                                 "--gemm",
                                 "mkl",
                                 "--threads-per-rank",
                                 "1"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

}  // namespace cleave::test
